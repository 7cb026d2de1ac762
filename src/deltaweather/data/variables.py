"""What is known of each weather variable: its unit, the range it can take, and how it is normalised."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Variable:
    """A WeatherBench 2 variable.

    `low..high` is the widest range a value can take on Earth in `unit`; `mean_low..mean_high` the range
    of its mean over any record and place, which is where a wrong unit shows. `log_scale` is the scale s of
    the transform log(1 + x/s) for rain-like variables, None for the identity.
    """

    unit: str
    low: float
    high: float
    mean_low: float
    mean_high: float
    mistaken: tuple[str, ...] = ()  # what the unit probably is when the range is wrong
    log_scale: float | None = None


_CELSIUS = ("degrees Celsius: add 273.15",)
_TEMPERATURE = Variable("K", 150.0, 350.0, 180.0, 330.0, _CELSIUS)
_WIND = Variable("m s**-1", -200.0, 200.0, -100.0, 100.0)
_PRESSURE = Variable("Pa", 30_000.0, 120_000.0, 40_000.0, 108_000.0, ("hPa: multiply by 100",))
_ENERGY = Variable("J m**-2", -1e8, 1e8, -5e7, 5e7)


def _rain(hours: int) -> Variable:
    # No mean over years is above 5 mm an hour; millimetres taken for metres are a thousand times more.
    return Variable(
        "m", -1e-3, 0.5 * hours, -1e-5, 5e-3 * hours, ("mm: divide by 1000",), log_scale=1e-3 * hours / 6
    )


KNOWN: dict[str, Variable] = {
    "2m_temperature": _TEMPERATURE,
    "2m_dewpoint_temperature": _TEMPERATURE,
    "sea_surface_temperature": _TEMPERATURE,
    "skin_temperature": _TEMPERATURE,
    "temperature": _TEMPERATURE,
    "10m_u_component_of_wind": _WIND,
    "10m_v_component_of_wind": _WIND,
    "100m_u_component_of_wind": _WIND,
    "100m_v_component_of_wind": _WIND,
    "10m_wind_speed": Variable("m s**-1", 0.0, 200.0, 0.0, 100.0),
    "u_component_of_wind": _WIND,
    "v_component_of_wind": _WIND,
    "wind_speed": Variable("m s**-1", 0.0, 200.0, 0.0, 120.0),
    "vertical_velocity": Variable("Pa s**-1", -100.0, 100.0, -5.0, 5.0),
    "geopotential": Variable("m**2 s**-2", -10_000.0, 900_000.0, -10_000.0, 800_000.0),
    "geopotential_mid": Variable("m**2 s**-2", -10_000.0, 900_000.0, -10_000.0, 800_000.0),
    "specific_humidity": Variable("kg kg**-1", -1e-3, 0.1, -1e-4, 0.04, ("g/kg: divide by 1000",)),
    "relative_humidity": Variable("1 or %", -5.0, 200.0, -1.0, 130.0),
    "surface_pressure": _PRESSURE,
    "mean_sea_level_pressure": Variable(
        "Pa", 80_000.0, 120_000.0, 95_000.0, 106_000.0, ("hPa: multiply by 100",)
    ),
    "total_cloud_cover": Variable("1", -0.01, 1.01, 0.0, 1.0, ("%: divide by 100",)),
    "surface_solar_radiation_downwards_6hr": _ENERGY,
    "toa_incident_solar_radiation": _ENERGY,
    "total_precipitation_6hr": _rain(6),
    "total_precipitation_24hr": _rain(24),
    "total_precipitation": _rain(1),
    "total_column_water_vapour": Variable("kg m**-2", -1.0, 150.0, 0.0, 90.0),
}

# Names used elsewhere, offered as near matches when a WeatherBench 2 name is missing.
ALIASES: dict[str, tuple[str, ...]] = {
    "2m_temperature": ("t2m", "2t", "tas", "temperature_2m", "air_temperature"),
    "2m_dewpoint_temperature": ("d2m", "2d", "dewpoint_2m"),
    "10m_u_component_of_wind": ("u10", "10u", "uas"),
    "10m_v_component_of_wind": ("v10", "10v", "vas"),
    "100m_u_component_of_wind": ("u100", "100u"),
    "100m_v_component_of_wind": ("v100", "100v"),
    "surface_pressure": ("sp", "ps", "pressure"),
    "mean_sea_level_pressure": ("msl", "psl", "mslp"),
    "total_precipitation_6hr": ("tp", "pr", "tp6h", "precipitation", "rain", "total_precipitation"),
    "total_cloud_cover": ("tcc", "clt", "cloud_cover"),
    "temperature": ("t", "ta", "air"),
    "geopotential": ("z", "zg", "phi"),
    "u_component_of_wind": ("u", "ua", "uwnd"),
    "v_component_of_wind": ("v", "va", "vwnd"),
    "specific_humidity": ("q", "hus", "shum"),
}

STATIC: dict[str, tuple[str, ...]] = {
    "orography": ("geopotential_at_surface", "orography", "surface_geopotential", "zs", "orog"),
    "land": ("land_sea_mask", "land_binary_mask", "lsm", "mask_land"),
}


def near_matches(wanted: str, present: Iterable[str]) -> list[str]:
    """Names in `present` that are probably what was meant by `wanted`, best first.

    >>> near_matches("2m_temprature", ["2m_temperature", "surface_pressure"])
    ['2m_temperature']
    >>> near_matches("2m_temperature", ["t2m", "sp"])
    ['t2m']
    """
    names = list(present)
    known = [name for name in names if name in ALIASES.get(wanted, ())]
    known += [name for name in names if wanted in ALIASES.get(name, ())]
    close = difflib.get_close_matches(wanted, names, n=3, cutoff=0.6)
    return list(dict.fromkeys(known + close))


def explain_missing(missing: Iterable[str], present: Iterable[str], where: str) -> str:
    """The sentence for variables that are not there, with what was probably meant."""
    names = sorted(present)
    lines = []
    for name in missing:
        close = near_matches(name, names)
        hint = f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
        lines.append(f"{name!r} is missing from {where}.{hint}")
    return (
        " ".join(lines)
        + f" It holds: {', '.join(names) or 'nothing'}. Names are those of WeatherBench 2; rename with "
        "xarray's Dataset.rename, or choose with variables=."
    )
