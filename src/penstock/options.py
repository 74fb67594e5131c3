"""The options of streams, tables and sinks: which are public, and which say where a secret is.

An option is secret unless its format says here that it is public; the formats of other packages say
it themselves, and cannot say it of the formats that are listed here.  Instead of a secret, a script
may say where it is: ``'env:NAME'`` or ``'file:PATH'``.
"""

from __future__ import annotations

import difflib
import re

from penstock.extensions import public_options

_FOLDER = """
    path order pathglobfilter recursivefilelookup modifiedbefore modifiedafter maxfilespertrigger
    maxbytespertrigger latestfirst maxfileage filenameonly cleansource sourcearchivedir basepath
    ignorecorruptfiles ignoremissingfiles compression mergeschema mode columnnameofcorruptrecord
"""
_TEXTS = "encoding charset linesep timezone locale dateformat timestampformat timestampntzformat"
_LAKE = """
    path versionasof timestampasof startingversion startingtimestamp mergeschema overwriteschema
    replacewhere maxfilespertrigger maxbytespertrigger ignoredeletes ignorechanges skipchangecommits
    readchangefeed txnappid txnversion snapshot-id branch tag as-of-timestamp
    stream-from-timestamp write-format check-nullability check-ordering
"""

_PUBLIC = {
    "replay": "path format order rate speed loop delimiter null missing",
    "memory": "rows",
    "jsonl": "path overwrite",
    "parquet": f"overwrite datetimerebasemode int96rebasemode {_FOLDER}",
    "sqlite": "path table overwrite pruned",
    "postgresql": "url table user overwrite pruned",
    "console": "rows numrows truncate",
    "callback": "",
    "blackhole": "",
    "noop": "",
    "csv": f"""overwrite header delimiter sep quote escape comment nullvalue nanvalue positiveinf
        negativeinf emptyvalue inferschema preferdate enforceschema ignoreleadingwhitespace
        ignoretrailingwhitespace maxcolumns maxcharspercolumn multiline quoteall escapequotes
        chartoescapequoteescaping unescapedquotehandling samplingratio {_FOLDER} {_TEXTS}""",
    "json": f"""multiline primitivesasstring prefersdecimal allowcomments allowunquotedfieldnames
        allowsinglequotes allownumericleadingzeros allowbackslashescapinganycharacter
        allowunquotedcontrolchars dropfieldifallnull ignorenullfields samplingratio
        {_FOLDER} {_TEXTS}""",
    "text": f"wholetext {_FOLDER} {_TEXTS}",
    "orc": _FOLDER,
    "avro": f"datetimerebasemode recordname recordnamespace positionalfieldmatching {_FOLDER}",
    "xml": f"""rowtag roottag declaration arrayelementname attributeprefix valuetag nullvalue
        excludeattribute ignoresurroundingspaces inferschema ignorenamespace wildcardcolname
        rowvalidationxsdpath validatename samplingratio {_FOLDER} {_TEXTS}""",
    "binaryfile": _FOLDER,
    "rate": "rowspersecond rampuptime numpartitions usemanualclock",
    "rate-micro-batch": "rowsperbatch numpartitions starttimestamp advancemillisperbatch",
    "socket": "host port includetimestamp",
    "kafka": """kafka.bootstrap.servers subscribe subscribepattern assign topic includeheaders
        startingoffsets endingoffsets startingtimestamp endingtimestamp
        startingoffsetsbytimestamp endingoffsetsbytimestamp startingoffsetsbytimestampstrategy
        failondataloss minpartitions maxoffsetspertrigger minoffsetspertrigger maxtriggerdelay
        maxrecordsperpartition groupidprefix kafka.group.id kafka.client.id kafka.acks
        kafka.security.protocol kafka.sasl.mechanism kafka.sasl.kerberos.service.name
        kafka.ssl.truststore.location kafka.ssl.keystore.location kafka.ssl.truststore.type
        kafka.ssl.keystore.type kafka.compression.type kafka.request.timeout.ms
        kafka.session.timeout.ms kafka.max.poll.records kafka.fetch.max.bytes
        kafkaconsumer.polltimeoutms fetchoffset.numretries fetchoffset.retryintervalms""",
    "jdbc": """url dbtable driver user partitioncolumn lowerbound upperbound numpartitions fetchsize
        batchsize isolationlevel querytimeout truncate cascadetruncate createtableoptions
        createtablecolumntypes customschema pushdownpredicate pushdownaggregate pushdownlimit
        pushdownoffset pushdowntablesample prefertimestampntz""",
    "delta": _LAKE,
    "iceberg": _LAKE,
    "hudi": f"{_LAKE} hoodie.table.name hoodie.datasource.query.type",
}
"""The public options of each format, of streams, tables and sinks alike; every other is secret."""

PUBLIC: dict[str, frozenset[str]] = {
    name: frozenset([*names.split(), "changes"]) for name, names in _PUBLIC.items()
}

_SECRET = {
    "kafka": "kafka.sasl.jaas.config kafka.ssl.keystore.password kafka.ssl.truststore.password",
    "jdbc": """password query preparequery sessioninitstatement keytab principal refreshkrb5config
        connectionprovider hint""",
    "csv": "extension columnpruning singlevariantcolumn",
    "json": "writenonasciicharacterascodepoint singlevariantcolumn",
    "avro": """avroschema avroschemaurl ignoreextension recursivefieldmaxdepth
        enablestableidentifiersforuniontype stableidentifierprefixforuniontype""",
}
"""Options that the systems of other formats know besides those that are public."""

_OPEN = frozenset(("jdbc", "delta", "iceberg", "hudi"))
"""Formats of Spark that give options which they do not know to somebody else."""


def option_mistake(format: str, name: str) -> str | None:
    """Say what is wrong with the name of an option of one of Spark's formats; None: nothing.

    Spark itself says nothing of an option that it does not know.  An option of a name with dots,
    or of a format that gives its options to another system, is wrong only if it is nearly one
    that is known.
    """
    kind, low = format.lower(), name.lower()
    if kind not in PUBLIC:
        return None
    known = (PUBLIC[kind] - {"changes"}) | frozenset(_SECRET.get(kind, "").split())
    if low in known or low == "changes":
        return None
    cutoff = 0.9 if "." in low else 0.75
    near = difflib.get_close_matches(low, sorted(known), 1, cutoff)
    if not near and ("." in low or kind in _OPEN):
        return None
    near = near or difflib.get_close_matches(low, sorted(known), 1, 0.5)
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(known))}"


NAMES = frozenset[str]().union(*PUBLIC.values())
"""The options that are public in some format."""

_REFERENCE = re.compile(r"env:[^\s=]+|file:.+")

_PLACE = re.compile(r"(path|location|folder|directory|dir|file|warehouse|uri|url)s?$")
"""Options that are places by their names: ``file:`` is then the kind of place."""


class Secret(str):
    """The value of an option that was marked as secret: ``url SECRET 'env:PG_URL'``."""

    __slots__ = ()


def is_public(format: str, name: str) -> bool:
    """Whether everybody may see the value of an option."""
    known = PUBLIC.get(format.lower())
    if known is None:
        return name.lower() == "changes" or name.lower() in public_options(format.lower())
    return name.lower() in known


def refers(format: str, name: str, value: str, marked: bool = False) -> bool:
    """Whether a value only says where a secret is: of a secret option, or of any that is marked."""
    if _REFERENCE.fullmatch(value) is None:
        return False
    place = value.startswith("file:") and _PLACE.search(name.lower()) is not None
    return marked or not (is_public(format, name) or place)
