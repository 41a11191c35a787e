'use strict';

const PYTHON = 'ms-python.python';

/**
 * The command of the server: the one that is set, else that of the selected Python environment
 * where xla2tpu is installed in it, else `xla2tpu` on the PATH.
 *
 * @param {string[]} configured the setting `xla2tpu.command`
 * @param {string | undefined} python the interpreter of the selected environment
 * @param {(python: string) => boolean} has whether an interpreter has xla2tpu
 * @returns {{ command: string, args: string[] }}
 */
function serverCommand(configured, python, has) {
  if (configured.length > 0) {
    return { command: configured[0], args: configured.slice(1) };
  }
  if (python !== undefined && has(python)) {
    return { command: python, args: ['-m', 'xla2tpu', 'server'] };
  }
  return { command: 'xla2tpu', args: ['server'] };
}

/**
 * The interpreter that is selected in the Python extension, if that is installed.
 *
 * @param {{ getExtension(id: string): any }} extensions `vscode.extensions`
 * @param {unknown} resource the file or folder that it is asked for
 * @returns {Promise<string | undefined>}
 */
async function selectedPython(extensions, resource) {
  const extension = extensions.getExtension(PYTHON);
  if (extension === undefined) {
    return undefined;
  }
  const api = extension.isActive ? extension.exports : await extension.activate();
  const environments = api?.environments;
  if (environments === undefined) {
    return undefined;
  }
  const path = environments.getActiveEnvironmentPath(resource);
  const environment = await environments.resolveEnvironment(path);
  return environment?.executable?.uri?.fsPath;
}

module.exports = { serverCommand, selectedPython };
