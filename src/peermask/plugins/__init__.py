"""Plug-ins: user code that registers algorithms, models, datasets and the like.

Code is imported only if the user named it: with `--import`, with the key `imports` of a config that is run, or by
installing a package with an entry point (see `registry.py`). A run folder or fleet file may come from somebody else.
What it says it was made with is compared with what the user named, now or earlier, and never imported for being there:
a file by its SHA-256, a module by its name, place and version.

What was named earlier is kept for each user in $XDG_STATE_HOME/peermask/plugins (~/.local/state/peermask/plugins): a
file called by the SHA-256 of the plug-in, or by the name of its module, that says where it is.
"""

from peermask.plugins.find import find_plugins
from peermask.plugins.load import imported_hash, load_plugins, records
from peermask.plugins.record import Plugin, changed, of_name

__all__ = ["Plugin", "changed", "find_plugins", "imported_hash", "load_plugins", "of_name", "records"]
