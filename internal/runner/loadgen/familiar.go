package loadgen

import (
	"bytes"
	"unicode/utf8"
)

// familiar is what is known of a packed body's pattern, where that is one whole
// event with one text: a variant that differs inside of the text alone is the same
// event with another text, and need not be read again.
type familiar struct {
	from, to int // of the text, in the pattern
	size     int // of the pattern; 0 where nothing is known
	content  bool
}

const eventStart, eventEnds = "data: ", "\n\n"

// eventFrame is what such an event has beside its data.
const eventFrame = len(eventStart) + len(eventEnds)

// familiar looks at a pattern that was just read as one event.
func (d *decoder) familiar(pattern []byte) familiar {
	if !bytes.HasPrefix(pattern, []byte(eventStart)) || !bytes.HasSuffix(pattern, []byte(eventEnds)) {
		return familiar{}
	}
	data := pattern[len(eventStart) : len(pattern)-len(eventEnds)]
	from, to, ok := d.parser.TextSpan(data)
	if !ok || bytes.ContainsAny(data, "\r\n") || !plain(data[from:to]) {
		// In a text with escapes, or characters of several bytes, a piece says nothing.
		return familiar{}
	}
	return familiar{len(eventStart) + from, len(eventStart) + to, len(pattern), d.content}
}

// event is the length of the event that a record stands for, or 0 where it must be
// read.
func (f familiar) event(r record, size int) int {
	n := r.prefix + len(r.middle) + r.suffix
	switch {
	case f.size == 0 || f.size != size:
		return 0
	case len(r.middle) == 0 && n == size:
		return n // the same text again
	case r.prefix < f.from || size-r.suffix > f.to:
		return 0
	case n-size+f.to <= f.from:
		return 0 // nothing is left of the text
	}
	if !plain(r.middle) {
		return 0
	}
	return n
}

// plain says whether text stands for itself inside of a JSON string, byte by byte.
func plain(text []byte) bool {
	for _, b := range text {
		if b < ' ' || b == '"' || b == '\\' || b >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
