package sse

import (
	"encoding/json"
	"unicode/utf8"
)

// maxDepth bounds the nesting of a JSON value, so that hostile input cannot
// exhaust the stack.
const maxDepth = 64

// scanner reads JSON without building values. Its methods return false for what
// is not valid JSON, and leave at behind what they read otherwise.
type scanner struct {
	data  []byte
	at    int
	depth int
}

func (s *scanner) space() {
	for s.at < len(s.data) {
		switch s.data[s.at] {
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			return
		}
	}
}

// peek is the first byte of the next token, 0 at the end.
func (s *scanner) peek() byte {
	s.space()
	if s.at == len(s.data) {
		return 0
	}
	return s.data[s.at]
}

// eat takes the token b.
func (s *scanner) eat(b byte) bool {
	if s.peek() != b || s.at == len(s.data) {
		return false
	}
	s.at++
	return true
}

// object reads an object, calling value for each key to read its value.
func (s *scanner) object(value func(key []byte) bool) bool {
	if !s.eat('{') || s.depth == maxDepth {
		return false
	}
	s.depth++
	defer func() { s.depth-- }()
	if s.eat('}') {
		return true
	}
	for {
		if s.peek() != '"' {
			return false
		}
		key, ok := s.literal()
		if !ok || !s.eat(':') || !value(key) {
			return false
		}
		if s.eat(',') {
			continue
		}
		return s.eat('}')
	}
}

// objectOr reads an object as object does, and skips anything else.
func (s *scanner) objectOr(value func(key []byte) bool) bool {
	if s.peek() != '{' {
		return s.skip()
	}
	return s.object(value)
}

// arrayOr reads an array, calling element to read each element, and skips
// anything else.
func (s *scanner) arrayOr(element func() bool) bool {
	if s.peek() != '[' {
		return s.skip()
	}
	if s.depth == maxDepth {
		return false
	}
	s.at++
	s.depth++
	defer func() { s.depth-- }()
	if s.eat(']') {
		return true
	}
	for {
		if !element() {
			return false
		}
		if s.eat(',') {
			continue
		}
		return s.eat(']')
	}
}

// stringOr reads a string and returns what is between its quotes, as written; it
// skips anything else.
func (s *scanner) stringOr() ([]byte, bool) {
	if s.peek() != '"' {
		return nil, s.skip()
	}
	return s.literal()
}

// literal reads a string whose opening quote is next.
func (s *scanner) literal() ([]byte, bool) {
	from := s.at + 1
	ascii := true
	for i := from; i < len(s.data); i++ {
		switch b := s.data[i]; {
		case b == '"':
			text := s.data[from:i]
			s.at = i + 1
			return text, ascii || utf8.Valid(text)
		case b == '\\':
			n := s.escape(i)
			if n == 0 {
				return nil, false
			}
			i += n - 1
		case b < ' ':
			return nil, false
		case b >= utf8.RuneSelf:
			ascii = false
		}
	}
	return nil, false
}

// escape is the length of the escape sequence at i, 0 if there is none.
func (s *scanner) escape(i int) int {
	if i+1 >= len(s.data) {
		return 0
	}
	switch s.data[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if i+6 > len(s.data) {
			return 0
		}
		for _, b := range s.data[i+2 : i+6] {
			if !hexadecimal(b) {
				return 0
			}
		}
		return 6
	}
	return 0
}

func hexadecimal(b byte) bool {
	return '0' <= b && b <= '9' || 'a' <= b && b <= 'f' || 'A' <= b && b <= 'F'
}

// skip reads any value.
func (s *scanner) skip() bool {
	switch s.peek() {
	case '{':
		return s.object(func([]byte) bool { return s.skip() })
	case '[':
		return s.arrayOr(s.skip)
	case '"':
		_, ok := s.literal()
		return ok
	case 't':
		return s.word("true")
	case 'f':
		return s.word("false")
	case 'n':
		return s.word("null")
	}
	return s.number()
}

func (s *scanner) word(w string) bool {
	if len(s.data)-s.at < len(w) || string(s.data[s.at:s.at+len(w)]) != w {
		return false
	}
	s.at += len(w)
	return true
}

// number reads a JSON number.
func (s *scanner) number() bool {
	s.peek()
	if s.at < len(s.data) && s.data[s.at] == '-' {
		s.at++
	}
	from := s.at
	if n := s.digits(); n == 0 || (n > 1 && s.data[from] == '0') {
		return false
	}
	if s.at < len(s.data) && s.data[s.at] == '.' {
		s.at++
		if s.digits() == 0 {
			return false
		}
	}
	if s.at < len(s.data) && (s.data[s.at] == 'e' || s.data[s.at] == 'E') {
		s.at++
		if s.at < len(s.data) && (s.data[s.at] == '+' || s.data[s.at] == '-') {
			s.at++
		}
		return s.digits() > 0
	}
	return true
}

func (s *scanner) digits() int {
	from := s.at
	for s.at < len(s.data) && '0' <= s.data[s.at] && s.data[s.at] <= '9' {
		s.at++
	}
	return s.at - from
}

// maxCount is the largest token count that is believed.
const maxCount = 1 << 30

// count reads a non-negative whole number into n; null leaves it, anything else
// is refused.
func (s *scanner) count(n *int) bool {
	if s.peek() == 'n' {
		return s.word("null")
	}
	from := s.at
	if !s.number() {
		return false
	}
	v := 0
	for _, b := range s.data[from:s.at] {
		if b < '0' || b > '9' {
			return false
		}
		if v = v*10 + int(b-'0'); v > maxCount {
			return false
		}
	}
	*n = v
	return true
}

// unescape decodes what is between the quotes of a valid string.
func unescape(literal []byte) string { return string(appendUnescaped(nil, literal)) }

func appendUnescaped(to, literal []byte) []byte {
	plain := true
	for _, b := range literal {
		plain = plain && b != '\\'
	}
	if plain {
		return append(to, literal...)
	}
	var text string
	quoted := append(append([]byte{'"'}, literal...), '"')
	if json.Unmarshal(quoted, &text) != nil {
		return append(to, literal...)
	}
	return append(to, text...)
}
