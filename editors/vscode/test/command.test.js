'use strict';

const assert = require('node:assert');
const { test } = require('node:test');
const { selectedPython, serverCommand } = require('../command');

const MODULE = { command: '/env/bin/python', args: ['-m', 'xla2tpu', 'server'] };

test('the command that is set comes first', () => {
  const found = serverCommand(['uvx', 'xla2tpu', 'server'], '/env/bin/python', () => true);
  assert.deepStrictEqual(found, { command: 'uvx', args: ['xla2tpu', 'server'] });
});

test('then that of the environment which has the package', () => {
  assert.deepStrictEqual(serverCommand([], '/env/bin/python', () => true), MODULE);
});

test('then what is on the PATH', () => {
  const onPath = { command: 'xla2tpu', args: ['server'] };
  assert.deepStrictEqual(serverCommand([], '/env/bin/python', () => false), onPath);
  assert.deepStrictEqual(serverCommand([], undefined, () => assert.fail()), onPath);
});

test('the interpreter that the Python extension has selected', async () => {
  const environments = {
    getActiveEnvironmentPath: (resource) => ({ id: resource }),
    resolveEnvironment: async ({ id }) => ({ executable: { uri: { fsPath: `/${id}/python` } } }),
  };
  const active = { isActive: true, exports: { environments } };
  const sleeping = { isActive: false, activate: async () => ({ environments }) };
  for (const extension of [active, sleeping]) {
    assert.strictEqual(await selectedPython({ getExtension: () => extension }, 'env'), '/env/python');
  }
});

test('no interpreter without the Python extension, or with one that has no such interface', async () => {
  for (const extension of [undefined, { isActive: true, exports: {} }]) {
    assert.strictEqual(await selectedPython({ getExtension: () => extension }, 'env'), undefined);
  }
});
