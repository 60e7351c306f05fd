package sse

import (
	"bytes"
	"errors"
)

// MaxEvent is the longest line, and the longest event, that is accepted.
const MaxEvent = 16 << 20

// ErrTooLong is the error of a line or an event of more than MaxEvent bytes.
var ErrTooLong = errors.New("line or event longer than 16 MiB")

// Event is one event of a stream.
type Event struct {
	// Name is the value of the event field, empty where there was none.
	Name []byte
	// Data holds the data lines joined by LF. It is valid until the next call.
	Data []byte
	// End is the offset in the stream behind the byte that ended the event.
	End int64
	// Complete is false for what the stream's end cut off before its blank line.
	Complete bool
}

// Splitter cuts a byte stream into events. The zero value is ready; it is not
// safe for concurrent use.
type Splitter struct {
	// Comments and Stray count the lines that carried no field: comments (keep-
	// alives), and lines whose field the standard does not know.
	Comments, Stray int

	line    []byte // the part of a line seen so far
	data    []byte // of the pending event; may alias the caller's bytes
	own     []byte // buffer for data that must outlive a call
	name    []byte
	offset  int64
	pending bool // the event has a data field
	skipLF  bool // the last byte was a CR
	started bool // the first line is behind us
}

// Next returns the next event that ends in p, and what is left of p behind it.
// When ok is false, all of p was taken. The event's slices may alias p.
func (s *Splitter) Next(p []byte) (ev Event, rest []byte, ok bool, err error) {
	for len(p) > 0 {
		if s.skipLF {
			s.skipLF = false
			if p[0] == '\n' {
				p = p[1:]
				s.offset++
				continue
			}
		}
		i := lineEnd(p)
		if i < 0 {
			break
		}
		line := p[:i]
		if len(s.line) > 0 {
			if len(s.line)+i > MaxEvent {
				return Event{}, nil, false, ErrTooLong
			}
			s.line = append(s.line, line...)
			line = s.line
		}
		s.skipLF = p[i] == '\r'
		s.offset += int64(i) + 1
		p = p[i+1:]
		ev, ok, err = s.take(line)
		if len(s.line) > 0 && s.pending {
			s.keep() // the data points into s.line
		}
		s.line = s.line[:0]
		if ok || err != nil {
			return ev, p, ok, err
		}
	}
	if len(s.line)+len(p) > MaxEvent {
		return Event{}, nil, false, ErrTooLong
	}
	s.line = append(s.line, p...)
	s.offset += int64(len(p))
	if s.pending {
		s.keep()
	}
	return Event{}, nil, false, nil
}

// End returns what the stream's end left without its blank line, if anything.
func (s *Splitter) End() (ev Event, ok bool, err error) {
	if len(s.line) > 0 {
		line := s.line
		if ev, ok, err = s.take(line); ok || err != nil {
			return ev, ok, err
		}
		s.keep()
		s.line = s.line[:0]
	}
	if !s.pending {
		return Event{}, false, nil
	}
	s.pending = false
	return Event{Name: s.name, Data: s.data, End: s.offset}, true, nil
}

// Between says whether the stream is between two events: the last byte ended one,
// or nothing has come yet but whole events.
func (s *Splitter) Between() bool {
	return !s.pending && !s.skipLF && len(s.line) == 0 && len(s.name) == 0
}

// Offset is how much of the stream was taken.
func (s *Splitter) Offset() int64 { return s.offset }

// Skip passes over n bytes that the caller knows to be whole events of data alone,
// ended by LF. The stream must be between two events.
func (s *Splitter) Skip(n int) { s.offset += int64(n) }

// lineEnd is the index of the first CR or LF, or -1.
func lineEnd(p []byte) int {
	i := bytes.IndexByte(p, '\n')
	if i < 0 {
		return bytes.IndexByte(p, '\r')
	}
	if j := bytes.IndexByte(p[:i], '\r'); j >= 0 {
		return j
	}
	return i
}

// keep copies the pending data into the splitter's own buffer.
func (s *Splitter) keep() {
	if len(s.data) == 0 || (len(s.own) >= len(s.data) && &s.own[0] == &s.data[0]) {
		return
	}
	s.own = append(s.own[:0], s.data...)
	s.data = s.own
}

// take handles one whole line; an empty one ends the event.
func (s *Splitter) take(line []byte) (Event, bool, error) {
	if !s.started {
		s.started = true
		line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	if len(line) == 0 {
		if !s.pending {
			s.name = s.name[:0]
			return Event{}, false, nil
		}
		ev := Event{Name: s.name, Data: s.data, End: s.offset, Complete: true}
		s.pending, s.data, s.name = false, nil, s.name[:0]
		return ev, true, nil
	}
	if line[0] == ':' {
		s.Comments++
		return Event{}, false, nil
	}
	field, value, _ := bytes.Cut(line, []byte(":"))
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	switch string(field) {
	case "data":
		return Event{}, false, s.addData(value)
	case "event":
		s.name = append(s.name[:0], value...)
	case "id", "retry":
	default:
		s.Stray++
	}
	return Event{}, false, nil
}

func (s *Splitter) addData(value []byte) error {
	if !s.pending {
		s.pending, s.data = true, value
		return nil
	}
	if len(s.data)+1+len(value) > MaxEvent {
		return ErrTooLong
	}
	s.keep()
	if len(s.data) == 0 {
		s.own = s.own[:0]
	}
	s.own = append(append(s.own, '\n'), value...)
	s.data = s.own
	return nil
}
