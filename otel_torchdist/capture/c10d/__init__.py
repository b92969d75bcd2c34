"""Operations of c10d, torch's layer of collectives: from the dispatcher's call to the record on the tape."""
