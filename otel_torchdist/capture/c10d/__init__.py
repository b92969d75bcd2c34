"""Operations of c10d, torch's layer of collectives: from the dispatcher call to the record on the tape."""
