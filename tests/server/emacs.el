;; What a person does in Emacs with Eglot: open a file, read the diagnostics, fix all, save.
;; XLA2TPU_COMMAND is the command of the server, XLA2TPU_SEEN the file for what was seen.

(require 'package)
(package-initialize)
(require 'eglot)

(setq make-backup-files nil
      eglot-sync-connect 60
      eglot-server-programs
      `((python-mode . ,(split-string (getenv "XLA2TPU_COMMAND") "\n"))))
(setq-default eglot-workspace-configuration '(:xla2tpu (:unsafeFixes t)))

(find-file (car command-line-args-left))
(setq command-line-args-left nil)
(call-interactively #'eglot)
(with-timeout (60 (error "There are no diagnostics"))
  (while (null (flymake-diagnostics))
    (flymake-start)
    (accept-process-output nil 0.1)))
(let ((seen (mapcar (lambda (d)
                      (format "%d %s" (line-number-at-pos (flymake-diagnostic-beg d))
                              (flymake-diagnostic-text d)))
                    (flymake-diagnostics))))
  (with-temp-file (getenv "XLA2TPU_SEEN")
    (insert (mapconcat #'identity seen "\n"))))
(eglot-code-actions (point-min) (point-max) "source.fixAll.xla2tpu" t)
(save-buffer)
(eglot-shutdown (eglot-current-server))
