"""What the rules advise, by the kind of program: launches, host, copies, pageable copies and communication."""
