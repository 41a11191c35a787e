"""`python -m xla2tpu.emulator`."""

from xla2tpu.emulator.launch import main

if __name__ == "__main__":
    main()
