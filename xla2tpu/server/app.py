"""The server: what a client says to it, and when it answers."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcContentModified
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

from xla2tpu import __version__
from xla2tpu.config import ConfigError
from xla2tpu.model import Finding
from xla2tpu.rulemodel import RuleError
from xla2tpu.server import options as options_
from xla2tpu.server import pages
from xla2tpu.server.actions import FIX_ALL, KINDS, Actions, wants
from xla2tpu.server.analyser import Analyser, Checked
from xla2tpu.server.diagnostics import SOURCE, diagnostic, finding_range
from xla2tpu.server.document import Document, is_python, path_of
from xla2tpu.server.edits import Edits, range_of
from xla2tpu.server.notebooks import SYNC, Cells, Notebook, notebook
from xla2tpu.server.options import Options
from xla2tpu.server.positions import Unit

P = ParamSpec("P")
T = TypeVar("T")

# How long a client may take to say its settings, in seconds.
_PATIENCE = 5.0
# libcst descends as deep as the text nests; other threads than the first get little room.
_STACK = 64 << 20
_WATCHED = ("**/*.py", "**/*.pyi", "**/pyproject.toml", "**/.xla2tpu.toml", "**/*.yaml", "**/*.yml")
_UNITS: dict[lsp.PositionEncodingKind, Unit] = {
    lsp.PositionEncodingKind.Utf8: "utf-8",
    lsp.PositionEncodingKind.Utf16: "utf-16",
    lsp.PositionEncodingKind.Utf32: "utf-32",
}


class Server(LanguageServer):
    """Diagnostics, explanations and fixes for the files that a client has open.

    The loop only takes and gives messages: the engine runs in one thread of its own.
    """

    def __init__(self) -> None:
        # Whole texts: pygls splits lines at form feeds and the like, which clients do not.
        super().__init__(
            "xla2tpu", __version__, lsp.TextDocumentSyncKind.Full, notebook_document_sync=SYNC
        )
        self.analyser = Analyser()
        self.pages = pages.Pages()
        self.documents: dict[str, Document] = {}
        self.cells = Cells()
        # It keeps texts of cells as well, and would complain of each part that is sent of one.
        logging.getLogger("pygls.workspace.text_document").disabled = True
        # The notebook of each cell.
        self._notebooks: dict[str, str] = {}
        self._checked: dict[str, Checked] = {}
        self._with_fixes: dict[str, Checked] = {}
        self._options: dict[str, Options] = {}
        self._pushed: object = None
        self._watches = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._told: set[str] = set()
        self._engine: ThreadPoolExecutor | None = None

    def shutdown(self) -> None:
        """End the engine's thread, and take away what was written."""
        for timer in self._timers.values():
            timer.cancel()
        if self._engine is not None:
            self._engine.shutdown(cancel_futures=True)
        self.pages.close()
        super().shutdown()  # type: ignore[no-untyped-call]

    # -- what the client tells ---------------------------------------------------------------

    def initialized(self) -> None:
        """Ask to be told of files that change on the disk, where the client does that."""
        workspace = self.client_capabilities.workspace
        watching = workspace.did_change_watched_files if workspace else None
        registrations = []
        if watching and watching.dynamic_registration:
            self._watches = True
            files = lsp.DidChangeWatchedFilesRegistrationOptions(
                [lsp.FileSystemWatcher(glob_pattern=pattern) for pattern in _WATCHED]
            )
            method = lsp.WORKSPACE_DID_CHANGE_WATCHED_FILES
            registrations.append(lsp.Registration("xla2tpu-files", method, files))
        changing = workspace.did_change_configuration if workspace else None
        if changing and changing.dynamic_registration:
            section = lsp.DidChangeConfigurationRegistrationOptions(section=SOURCE)
            method = lsp.WORKSPACE_DID_CHANGE_CONFIGURATION
            registrations.append(lsp.Registration("xla2tpu-settings", method, section))
        if registrations:
            self.client_register_capability(lsp.RegistrationParams(registrations))

    def push(self, settings: object, bare: bool = False) -> None:
        """Take settings that the client sends of itself; ``bare`` ones may be without section."""
        if isinstance(settings, dict) and (bare or SOURCE in settings):
            self._pushed = settings.get(SOURCE, settings)
        self._options.clear()
        self._told.clear()
        self.schedule_all()

    @property
    def unit(self) -> Unit:
        """What columns are counted in, as it was agreed on."""
        return _UNITS[lsp.PositionEncodingKind(self.workspace.position_encoding)]

    def opened(self, item: lsp.TextDocumentItem) -> None:
        if not is_python(item.uri, item.language_id):
            return
        path = path_of(item.uri)
        self._take(Document(item.uri, item.version, item.text, self.unit, path))
        self._refresh_unwatched()
        self.schedule(item.uri, 0)

    def changed(self, uri: str, version: int) -> None:
        before = self.documents.get(uri)
        if before is None:
            return
        text = self.workspace.get_text_document(uri).source
        self._take(Document(uri, version, text, before.unit, before.path))
        self.schedule(uri, self._options.get(uri, Options()).delay)

    def _take(self, document: Document) -> None:
        self.documents[document.uri] = document
        self.analyser.take(document)

    def notebook_is(self, uri: str, version: int) -> None:
        """Take the cells of a notebook as the client has them now."""
        path, known = path_of(uri), self.workspace.get_notebook_document(notebook_uri=uri)
        if known is None or path is None or not path.endswith(".ipynb"):
            return
        before = self.documents.get(uri)
        cells = self.cells.of(known.cells)
        self.documents[uri] = now = notebook(uri, version, path, self.unit, cells)
        if isinstance(before, Notebook):
            gone = {cell.uri for cell in before.cells} - {cell.uri for cell in now.cells}
            self._withdraw(gone)
        self._notebooks |= {cell.uri: uri for cell in now.cells}
        self.schedule(uri, 0 if before is None else None)

    def _withdraw(self, uris: Iterable[str]) -> None:
        """Take back the diagnostics of files or cells that are no longer there."""
        for uri in uris:
            self._notebooks.pop(uri, None)
            self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))

    def saved(self, uri: str) -> None:
        self._refresh_unwatched()
        if uri in self.documents:
            self.schedule(uri, 0)

    def closed(self, uri: str) -> None:
        document = self.documents.pop(uri, None)
        if document is None:
            return
        for known in (self._checked, self._with_fixes, self._options):
            known.pop(uri, None)
        timer = self._timers.pop(uri, None)
        if timer is not None:
            timer.cancel()
        if isinstance(document, Notebook):
            self._withdraw([cell.uri for cell in document.cells])
        else:
            self._withdraw([uri])
        if document.path is not None:
            self._start(self._forget_text(document.path))

    def files_changed(self, uris: list[str]) -> None:
        """Files have changed on the disk: those that are open count as the client has them."""
        opened = {document.path for document in self.documents.values()}
        if any(path_of(uri) not in opened for uri in uris):
            self.forget_files()
            self.schedule_all()

    # -- diagnostics -------------------------------------------------------------------------

    def schedule(self, uri: str, delay: float | None = None) -> None:
        """Look at a file soon, once for all that is asked until then."""
        timer = self._timers.pop(uri, None)
        if timer is not None:
            timer.cancel()
        if delay is None:
            delay = self._options.get(uri, Options()).delay

        def go() -> None:
            self._timers.pop(uri, None)
            self._start(self._diagnose(uri))

        self._timers[uri] = asyncio.get_running_loop().call_later(delay, go)

    def schedule_all(self) -> None:
        """Look at all open files soon."""
        for uri in self.documents:
            if uri not in self._timers:
                self.schedule(uri)

    async def _diagnose(self, uri: str) -> None:
        document = self.documents.get(uri)
        if document is None:
            return
        options = await self._options_of(document)
        checked = Checked(document, options)
        if options.enable:
            answer = await self._ask(document, self.analyser.check, document, options)
            if answer is None:
                return
            checked = answer
        if self.documents.get(uri) is not document:
            return
        if checked.error is not None:
            self._tell(f"{document.path or uri}: {checked.error}")
        # A cell that is no Python is left out, and the others still have theirs.
        if checked.parses or isinstance(document, Notebook):
            self._checked[uri] = checked
        elif uri in self._checked:
            return  # the last ones stay while the text does not parse
        self._publish(checked)
        if await self._ask(document, self.analyser.spreads, checked):
            self.schedule_all()

    def _publish(self, checked: Checked) -> None:
        """Send the diagnostics of a file, or of each cell of a notebook."""
        document = checked.document
        findings = () if checked.error else checked.findings
        parts = document.cells if isinstance(document, Notebook) else (document,)
        found: dict[str, list[lsp.Diagnostic]] = {part.uri: [] for part in parts}
        for finding in findings:
            part = document.cell(finding) if isinstance(document, Notebook) else document
            found[part.uri].append(self._shown(checked, finding))
        for part in parts:
            self.text_document_publish_diagnostics(
                lsp.PublishDiagnosticsParams(part.uri, found[part.uri], part.version)
            )

    def _shown(self, checked: Checked, finding: Finding) -> lsp.Diagnostic:
        link = self._link(finding.rule, checked)
        return diagnostic(checked.document, finding, link)

    def _link(self, code: str, checked: Checked) -> str | None:
        rule = checked.rules.get(code)
        return None if rule is None else self.pages.link(rule, checked.options.rule_pages)

    # -- explanations ------------------------------------------------------------------------

    async def hover(self, params: lsp.HoverParams) -> lsp.Hover | None:
        """Explain the finding, or the code that the text spells, at a place."""
        uri = params.text_document.uri
        checked = await self._known(uri)
        if checked is None or checked.document.data is None:
            return None
        document, findings = checked.document, list(checked.findings)
        if isinstance(document, Notebook):
            findings = [f for f in findings if document.cell(f).uri == uri]
        here = params.position
        for finding in findings:
            span = finding_range(checked.document, finding)
            rule = checked.rules.get(finding.rule)
            if rule is not None and span.start <= here <= span.end:
                text = pages.explanation(finding, rule, self._link(rule.code, checked))
                return lsp.Hover(self._content(text), span)
        if isinstance(document, Notebook):
            document = next(cell for cell in document.cells if cell.uri == uri)
        lines = document.positions.lines
        char = document.positions.char(here.line, here.character)
        index = lines.index(char)
        start = lines.starts[index]
        spelled = pages.code_at(lines.content(index), char - start)
        rule = None if spelled is None else checked.rules.get(spelled[0])
        if spelled is None or rule is None:
            return None
        span = range_of(document, start + spelled[1], start + spelled[2])
        return lsp.Hover(self._content(pages.page(rule)), span)

    def _content(self, markdown: str) -> lsp.MarkupContent:
        capabilities = self.client_capabilities.text_document
        hover = capabilities.hover if capabilities else None
        if lsp.MarkupKind.Markdown in ((hover.content_format if hover else None) or ()):
            return lsp.MarkupContent(lsp.MarkupKind.Markdown, markdown)
        return lsp.MarkupContent(lsp.MarkupKind.PlainText, pages.plain(markdown))

    # -- fixes -------------------------------------------------------------------------------

    async def code_actions(self, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        """What can be done in a range; edits are left for later where the client asks for them."""
        only = params.context.only
        quick, whole = wants(only, lsp.CodeActionKind.QuickFix), wants(only, FIX_ALL)
        checked = await self._known(params.text_document.uri, with_fixes=True)
        if checked is None or not (quick or whole):
            return []
        if not checked.parses and not isinstance(checked.document, Notebook):
            return []
        actions = self._actions(checked)
        found = list(actions.quick_fixes(params.range, params.text_document.uri)) if quick else []
        fix_all = actions.fix_all() if whole else None
        if fix_all is not None:
            found.append(fix_all)
        # Where only the whole file is asked for, as on saving, it is done or silently not.
        if self._resolves() and (only is None or quick):
            return found
        done = []
        for action in found:
            assert isinstance(action.data, dict)
            edit = await self._ask(checked.document, actions.edit, action.data)
            if isinstance(edit, lsp.WorkspaceEdit):
                action.edit, action.data = edit, None
                done.append(action)
            elif edit is not None and params.context.trigger_kind is _INVOKED and not quick:
                self._tell(f"xla2tpu: {edit}", again=True)
        return done

    async def resolve(self, action: lsp.CodeAction) -> lsp.CodeAction:
        """Give an action its edit. Raises where the text is another one by now."""
        data = action.data
        if not isinstance(data, dict):
            return action
        checked = await self._known(data["uri"], with_fixes=True)
        if checked is None or checked.document.version != data["version"]:
            raise JsonRpcContentModified("the text has changed")
        edit = await self._ask(checked.document, self._actions(checked).edit, data)
        if isinstance(edit, lsp.WorkspaceEdit):
            action.edit = edit
        elif edit is not None:
            self._tell(f"xla2tpu: {edit}", again=True)
        return action

    def _actions(self, checked: Checked) -> Actions:
        edits = Edits(self.client_capabilities)
        return Actions(
            checked, self.analyser, edits, dict(self.documents), lambda f: self._shown(checked, f)
        )

    def _resolves(self) -> bool:
        """Whether the client asks for an action's edit when it is chosen."""
        capabilities = self.client_capabilities.text_document
        actions = capabilities.code_action if capabilities else None
        support = actions.resolve_support if actions else None
        return bool(support and "edit" in support.properties and actions and actions.data_support)

    # -- how ---------------------------------------------------------------------------------

    async def _known(self, uri: str, with_fixes: bool = False) -> Checked | None:
        """What is known of a file as it stands now."""
        uri = self._notebooks.get(uri, uri)
        document = self.documents.get(uri)
        if document is None:
            return None
        options = await self._options_of(document)
        if not options.enable:
            return None
        known = self._with_fixes.get(uri)
        if not with_fixes and (known is None or known.document is not document):
            known = self._checked.get(uri)
        if known is not None and known.document is document and known.options == options:
            return known
        known = await self._ask(document, self.analyser.check, document, options, with_fixes)
        if known is not None and with_fixes and self.documents.get(uri) is document:
            self._with_fixes[uri] = known
        return known

    async def _options_of(self, document: Document) -> Options:
        known = self._options.get(document.uri)
        if known is not None:
            return known
        section: object = self._pushed
        workspace = self.client_capabilities.workspace
        if workspace and workspace.configuration:
            items = [lsp.ConfigurationItem(scope_uri=document.uri, section=SOURCE)]
            asked = self.workspace_configuration_async(lsp.ConfigurationParams(items))
            try:
                (answer,) = await asyncio.wait_for(asked, _PATIENCE)
            except Exception as error:
                self._tell(f"xla2tpu: the editor does not tell its settings: {error!r}")
                answer = None
            section = self._pushed if answer is None else answer
        options, problems = options_.parse(section, self._folder_of(document))
        for problem in problems:
            self._tell(problem)
        self._options[document.uri] = options
        return options

    def _folder_of(self, document: Document) -> str | None:
        """The innermost folder of the workspace that a file lies in."""
        folders = [to_fs_path(folder.uri) for folder in self.workspace.folders.values()]
        path = document.path or ""
        around = [f for f in folders if f is not None and path.startswith(os.path.join(f, ""))]
        return max(around, key=len, default=self.workspace.root_path)

    async def _ask(
        self,
        document: Document,
        function: Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T | None:
        """Let the engine's thread do something for a text, unless it is out of date by then."""

        def job() -> T | None:
            if self.documents.get(document.uri) is not document:
                return None
            return function(*args, **kwargs)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread(), job)
        except (ConfigError, RuleError, OSError) as error:
            self._tell(str(error))
            return None

    def _thread(self) -> ThreadPoolExecutor:
        if self._engine is None:
            size = threading.stack_size(_STACK)
            try:
                self._engine = ThreadPoolExecutor(1, thread_name_prefix="engine")
                # Threads are started for work only.
                self._engine.submit(int).result()
            finally:
                threading.stack_size(size)
        return self._engine

    def forget_files(self) -> None:
        """What is known of files on the disk may be out of date."""
        self._with_fixes.clear()
        self._thread().submit(self.analyser.forget_files)

    def _refresh_unwatched(self) -> None:
        """Files may have changed without a word from the client."""
        if not self._watches:
            self.forget_files()
            self.schedule_all()

    async def _forget_text(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        if await loop.run_in_executor(self._thread(), self.analyser.close, path):
            self.schedule_all()

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A fault of ours: one file must not end the server.
            self._tell(f"xla2tpu: internal error: {type(error).__name__}: {error}")

    def _tell(self, message: str, again: bool = False) -> None:
        """Say something to the person at the editor, the same thing once."""
        if again or message not in self._told:
            self._told.add(message)
            self.window_show_message(
                lsp.ShowMessageParams(type=lsp.MessageType.Warning, message=message)
            )


_INVOKED = lsp.CodeActionTriggerKind.Invoked


def make() -> Server:
    """A server with all that it answers to."""
    server = Server()

    @server.feature(lsp.INITIALIZE)
    def initialize(params: lsp.InitializeParams) -> None:
        if params.initialization_options is not None:
            server.push(params.initialization_options, bare=True)

    @server.feature(lsp.INITIALIZED)
    def initialized(_: lsp.InitializedParams) -> None:
        server.initialized()

    @server.feature(lsp.WORKSPACE_DID_CHANGE_CONFIGURATION)
    def did_change_configuration(params: lsp.DidChangeConfigurationParams) -> None:
        server.push(params.settings)

    @server.feature(lsp.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def did_change_watched_files(params: lsp.DidChangeWatchedFilesParams) -> None:
        server.files_changed([change.uri for change in params.changes])

    @server.feature(lsp.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    def did_change_workspace_folders(_: lsp.DidChangeWorkspaceFoldersParams) -> None:
        server.push(None)

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def did_open(params: lsp.DidOpenTextDocumentParams) -> None:
        server.opened(params.text_document)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def did_change(params: lsp.DidChangeTextDocumentParams) -> None:
        server.changed(params.text_document.uri, params.text_document.version)

    @server.feature(lsp.TEXT_DOCUMENT_DID_SAVE)
    def did_save(params: lsp.DidSaveTextDocumentParams) -> None:
        server.saved(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def did_close(params: lsp.DidCloseTextDocumentParams) -> None:
        server.closed(params.text_document.uri)

    @server.feature(lsp.NOTEBOOK_DOCUMENT_DID_OPEN)
    def notebook_did_open(params: lsp.DidOpenNotebookDocumentParams) -> None:
        server.cells.open(params.cell_text_documents, server.unit)
        server.notebook_is(params.notebook_document.uri, params.notebook_document.version)

    @server.feature(lsp.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def notebook_did_change(params: lsp.DidChangeNotebookDocumentParams) -> None:
        if params.change.cells is not None:
            server.cells.change(params.change.cells, server.unit)
        server.notebook_is(params.notebook_document.uri, params.notebook_document.version)

    @server.feature(lsp.NOTEBOOK_DOCUMENT_DID_SAVE)
    def notebook_did_save(params: lsp.DidSaveNotebookDocumentParams) -> None:
        server.saved(params.notebook_document.uri)

    @server.feature(lsp.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def notebook_did_close(params: lsp.DidCloseNotebookDocumentParams) -> None:
        server.cells.close(params.cell_text_documents)
        server.closed(params.notebook_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    async def hover(params: lsp.HoverParams) -> lsp.Hover | None:
        return await server.hover(params)

    @server.feature(
        lsp.TEXT_DOCUMENT_CODE_ACTION,
        lsp.CodeActionOptions(code_action_kinds=KINDS, resolve_provider=True),
    )
    async def code_action(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        return await server.code_actions(params)

    @server.feature(lsp.CODE_ACTION_RESOLVE)
    async def resolve(action: lsp.CodeAction) -> lsp.CodeAction:
        return await server.resolve(action)

    return server
