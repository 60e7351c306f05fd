package collect

// KindOf says what kind of refusal an error is.
func KindOf(err error) string { return kindOf(err) }
