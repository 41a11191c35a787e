-- A session in Neovim for scripts/record_transcripts.py: what a person would see and do.
-- XLA2TPU_PLAN names a JSON file with the command of the server, the folder of the project, the
-- place to ask about and the file for what was seen. Written for Neovim 0.7 and later.

local handle = assert(io.open(os.getenv('XLA2TPU_PLAN')))
local plan = vim.fn.json_decode(handle:read('*a'))
handle:close()
local PATIENCE = 60000
local told = {}

local function tell(...)
  table.insert(told, table.concat({ ... }))
end

local function wait(what, condition)
  if not vim.wait(PATIENCE, condition, 20) then
    error('nothing came of: ' .. what)
  end
end

local function diagnostics(buffer)
  local found = vim.diagnostic.get(buffer)
  table.sort(found, function(a, b) return a.lnum < b.lnum end)
  for _, d in ipairs(found) do
    local code = d.code or d.user_data.lsp.code
    local level = vim.diagnostic.severity[d.severity]
    tell('  ', d.lnum + 1, ':', d.col + 1, ' ', level, ' ', code, ' ', (d.message:gsub('\n', ' ')))
  end
end

local function ask(buffer, id, method, params)
  local answers, problem = vim.lsp.buf_request_sync(buffer, method, params, PATIENCE)
  assert(answers, problem)
  assert(not answers[id].error, vim.inspect(answers[id].error))
  return answers[id].result
end

local function run()
  local config = { name = 'xla2tpu', cmd = plan.command, root_dir = plan.root }
  local id = vim.lsp.start and vim.lsp.start(config) or vim.lsp.start_client(config)
  local buffer = vim.api.nvim_get_current_buf()
  vim.lsp.buf_attach_client(buffer, id)
  wait('opening', function() return #vim.diagnostic.get(buffer) > 0 end)
  tell(':edit ', vim.fn.fnamemodify(vim.api.nvim_buf_get_name(buffer), ':t'))
  diagnostics(buffer)

  local document = vim.lsp.util.make_text_document_params(buffer)
  local at = { line = plan.line - 1, character = plan.column - 1 }
  tell('')
  tell(':lua vim.lsp.buf.hover()           at ', plan.line, ':', plan.column)
  local shown = ask(buffer, id, 'textDocument/hover', { textDocument = document, position = at })
  for _, line in ipairs(vim.split(vim.trim(shown.contents.value), '\n')) do
    tell(line == '' and '' or '  ' .. line)
  end

  tell('')
  tell(':lua vim.lsp.buf.code_action()     at ', plan.line, ':', plan.column)
  local params = {
    textDocument = document,
    range = { start = at, ['end'] = at },
    context = { diagnostics = {} },
  }
  for _, action in ipairs(ask(buffer, id, 'textDocument/codeAction', params)) do
    tell('  ', action.title, ' [', action.kind, ']')
  end

  tell('')
  tell(':lua vim.lsp.buf.code_action({ context = { only = { "source.fixAll.xla2tpu" } } })')
  params.context.only = { 'source.fixAll.xla2tpu' }
  local actions = ask(buffer, id, 'textDocument/codeAction', params)
  assert(#actions == 1, vim.inspect(actions))
  local client = vim.lsp.get_client_by_id(id)
  vim.lsp.util.apply_workspace_edit(actions[1].edit, client.offset_encoding)
  wait('fixing all', function() return #vim.diagnostic.get(buffer) == 0 end)
  tell('  ', actions[1].title, ' [', actions[1].kind, ']')
  tell('  diagnostics left: ', #vim.diagnostic.get(buffer))

  vim.cmd('write')
  tell('')
  tell(':write')
  handle = assert(io.open(plan.seen, 'w'))
  handle:write(table.concat(told, '\n'), '\n')
  handle:close()
end

local ok, problem = pcall(run)
if not ok then
  io.stderr:write(tostring(problem) .. '\n')
  vim.cmd('cquit')
end
vim.cmd('qall!')
