'use strict';

const { spawnSync } = require('node:child_process');
const vscode = require('vscode');
const { LanguageClient, TransportKind } = require('vscode-languageclient/node');
const { selectedPython, serverCommand } = require('./command');

const FIX_ALL = 'source.fixAll.xla2tpu';

/** @type {LanguageClient | undefined} */
let client;

/** Whether an interpreter has the package; it is not asked to import all of it. */
function hasPackage(python) {
  const code = 'import importlib.util as u, sys; sys.exit(u.find_spec("xla2tpu") is None)';
  return spawnSync(python, ['-c', code], { timeout: 10_000 }).status === 0;
}

async function start() {
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri;
  const configured = vscode.workspace.getConfiguration('xla2tpu', folder).get('command', []);
  const python =
    configured.length > 0 ? undefined : await selectedPython(vscode.extensions, folder);
  const { command, args } = serverCommand(configured, python, hasPackage);
  client = new LanguageClient(
    'xla2tpu',
    'xla2tpu',
    { command, args, transport: TransportKind.stdio },
    {
      documentSelector: [
        { scheme: 'file', language: 'python' },
        { scheme: 'untitled', language: 'python' },
        // Their texts come with their notebook; this is for hovering and code actions.
        { scheme: 'vscode-notebook-cell', language: 'python' },
      ],
    },
  );
  try {
    await client.start();
  } catch (error) {
    client = undefined;
    vscode.window.showErrorMessage(
      `The server of xla2tpu did not start (${command} ${args.join(' ')}): ` +
        "python -m pip install 'xla2tpu[lsp]' installs it, and the setting xla2tpu.command names it.",
    );
  }
}

async function stop() {
  const running = client;
  client = undefined;
  await running?.stop();
}

async function restart() {
  await stop();
  await start();
}

/** Ask for the one action that fixes a whole file, and do what it says. */
async function fixAll() {
  const document = vscode.window.activeTextEditor?.document;
  if (document === undefined) {
    return;
  }
  const last = document.lineAt(document.lineCount - 1).range.end;
  const whole = new vscode.Range(new vscode.Position(0, 0), last);
  const actions = await vscode.commands.executeCommand(
    'vscode.executeCodeActionProvider',
    document.uri,
    whole,
    FIX_ALL,
    1,
  );
  const edit = actions?.find((action) => action.kind?.value === FIX_ALL)?.edit;
  if (edit === undefined) {
    vscode.window.showInformationMessage('xla2tpu: there is nothing to fix in this file.');
  } else {
    await vscode.workspace.applyEdit(edit);
  }
}

/** @param {vscode.ExtensionContext} context */
async function activate(context) {
  context.subscriptions.push(
    vscode.commands.registerCommand('xla2tpu.restart', restart),
    vscode.commands.registerCommand('xla2tpu.fixAll', fixAll),
    vscode.workspace.onDidChangeConfiguration(async (event) => {
      if (event.affectsConfiguration('xla2tpu.command')) {
        await restart();
      }
    }),
  );
  await start();
}

module.exports = { activate, deactivate: stop };
