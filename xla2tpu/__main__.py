"""`python -m xla2tpu`."""

from xla2tpu.cli import main

if __name__ == "__main__":
    main()
