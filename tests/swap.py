"""Other text in the place of a module: a mutant's, or a learner's.

    sys.meta_path    [ Swap(minipaged.blocks) | ... the usual finders ]      asked first, whenever something is imported

Whoever imports the module afterwards gets the other text; whoever has imported it before keeps the real one."""

from importlib.abc import MetaPathFinder
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location


class Swap(MetaPathFinder, SourceFileLoader):
    """Finds one module, and gives it other text; `path` is where tracebacks say it stands."""

    def __init__(self, module, path, text):
        super().__init__(module, str(path))
        self.text = text

    def find_spec(self, name, path, target=None):
        return spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, name):
        return compile(self.text, self.path, "exec")
