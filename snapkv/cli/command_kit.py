"""Kit for command lines of other packages: commands, options of servers, JSON lines."""

from snapkv.cli.commands import (
    STORE_VARIABLE,
    App,
    argument,
    misuse_of,
    option,
    patience,
    version_option,
)
from snapkv.cli.formats import Json, json_line, time_json
from snapkv.cli.server_options import (
    HOST,
    AllowHostOption,
    HostOption,
    InsecureOption,
    MetricsOption,
    PortOption,
    login_for,
    metrics_served,
    password_file_option,
    user_option,
)
from snapkv.cli.store_options import grouped
