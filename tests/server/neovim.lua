-- What a person does in Neovim: open a file, read the diagnostics, type, fix all, write.
-- XLA2TPU_PLAN names a JSON file with the command of the server, its settings and the file for
-- what was seen. Written for Neovim 0.7 and later.

local function read(path)
  local file = assert(io.open(path))
  local text = file:read('*a')
  file:close()
  return vim.fn.json_decode(text)
end

local plan = read(os.getenv('XLA2TPU_PLAN'))
local PATIENCE = 60000

local function wait(what, condition)
  if not vim.wait(PATIENCE, condition, 20) then
    error('nothing came of: ' .. what)
  end
end

local function seen()
  local found = {}
  for _, d in ipairs(vim.diagnostic.get(0)) do
    table.insert(found, {
      line = d.lnum, column = d.col, end_column = d.end_col, message = d.message,
      source = d.source, code = d.user_data and d.user_data.lsp and d.user_data.lsp.code or d.code,
    })
  end
  return found
end

local function run()
  local config = {
    name = 'xla2tpu', cmd = plan.command, root_dir = plan.root, settings = plan.settings,
    -- Neovim 0.7 is not asked for settings.
    on_init = function(client)
      client.notify('workspace/didChangeConfiguration', { settings = plan.settings })
    end,
  }
  local id = vim.lsp.start and vim.lsp.start(config) or vim.lsp.start_client(config)
  local buffer = vim.api.nvim_get_current_buf()
  vim.lsp.buf_attach_client(buffer, id)
  wait('opening', function() return #vim.diagnostic.get(buffer) > 0 end)
  local result = { opened = seen() }

  local lines = vim.api.nvim_buf_line_count(buffer)
  local before = #result.opened
  vim.api.nvim_buf_set_lines(buffer, lines, lines, false, { 'xm.mark_step()' })
  wait('typing', function() return #vim.diagnostic.get(buffer) == before + 1 end)
  vim.api.nvim_buf_set_lines(buffer, lines, lines + 1, false, {})
  wait('typing back', function() return #vim.diagnostic.get(buffer) == before end)

  local client = vim.lsp.get_client_by_id(id)
  local params = {
    textDocument = vim.lsp.util.make_text_document_params(buffer),
    range = { start = { line = 0, character = 0 }, ['end'] = { line = lines, character = 0 } },
    context = { only = { 'source.fixAll.xla2tpu' }, diagnostics = {} },
  }
  local answers = vim.lsp.buf_request_sync(buffer, 'textDocument/codeAction', params, PATIENCE)
  local actions = answers[id].result
  assert(#actions == 1, vim.inspect(answers))
  vim.lsp.util.apply_workspace_edit(actions[1].edit, client.offset_encoding)
  wait('fixing all', function() return #vim.diagnostic.get(buffer) == 0 end)
  vim.cmd('write')

  local file = assert(io.open(plan.seen, 'w'))
  file:write(vim.fn.json_encode(result))
  file:close()
end

local ok, problem = pcall(run)
if not ok then
  io.stderr:write(tostring(problem) .. '\n')
  vim.cmd('cquit')
end
vim.cmd('qall!')
