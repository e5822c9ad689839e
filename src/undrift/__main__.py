from undrift.cli.main import main

main()
