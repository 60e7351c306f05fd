package canon

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Transform returns JSON text in canonical form. The text must be I-JSON
// (RFC 7493): valid UTF-8, no lone surrogates, no duplicate keys, numbers
// within the range of a double, integers without a fraction or exponent within
// ±(2^53−1).
func Transform(text []byte) ([]byte, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("JSON text is not valid UTF-8")
	}
	p := parser{in: text}
	out, err := p.value(nil, 0)
	if err != nil {
		return nil, fmt.Errorf("JSON text at byte %d: %w", p.pos, err)
	}
	p.space()
	if p.pos != len(p.in) {
		return nil, fmt.Errorf("JSON text at byte %d: unexpected text after the value", p.pos)
	}
	return out, nil
}

type parser struct {
	in  []byte
	pos int
}

var errEnd = errors.New("unexpected end")

func (p *parser) space() {
	for p.pos < len(p.in) {
		switch p.in[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

func (p *parser) peek() (byte, error) {
	p.space()
	if p.pos == len(p.in) {
		return 0, errEnd
	}
	return p.in[p.pos], nil
}

func (p *parser) value(dst []byte, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, errTooDeep
	}
	c, err := p.peek()
	if err != nil {
		return nil, err
	}
	switch {
	case c == '{':
		return p.object(dst, depth)
	case c == '[':
		return p.array(dst, depth)
	case c == '"':
		s, err := p.string()
		if err != nil {
			return nil, err
		}
		return AppendString(dst, s)
	case c == '-' || '0' <= c && c <= '9':
		return p.number(dst)
	}
	for _, word := range []string{"true", "false", "null"} {
		if n := len(word); len(p.in)-p.pos >= n && string(p.in[p.pos:p.pos+n]) == word {
			p.pos += n
			return append(dst, word...), nil
		}
	}
	return nil, fmt.Errorf("unexpected character %q", c)
}

func (p *parser) array(dst []byte, depth int) ([]byte, error) {
	p.pos++
	dst = append(dst, '[')
	for first := true; ; first = false {
		c, err := p.peek()
		if err != nil {
			return nil, err
		}
		if c == ']' && first {
			break
		}
		if !first {
			if c == ']' {
				break
			}
			if c != ',' {
				return nil, fmt.Errorf("unexpected character %q in an array", c)
			}
			p.pos++
			dst = append(dst, ',')
		}
		if dst, err = p.value(dst, depth+1); err != nil {
			return nil, err
		}
	}
	p.pos++
	return append(dst, ']'), nil
}

// member is a key of an object and where its canonical value lies.
type member struct {
	key   string
	value []byte
}

func (p *parser) object(dst []byte, depth int) ([]byte, error) {
	p.pos++
	var members []member
	for first := true; ; first = false {
		c, err := p.peek()
		if err != nil {
			return nil, err
		}
		if c == '}' {
			break
		}
		if !first {
			if c != ',' {
				return nil, fmt.Errorf("unexpected character %q in an object", c)
			}
			p.pos++
			if c, err = p.peek(); err != nil {
				return nil, err
			}
		}
		if c != '"' {
			return nil, fmt.Errorf("unexpected character %q instead of a key", c)
		}
		key, err := p.string()
		if err != nil {
			return nil, err
		}
		if c, err = p.peek(); err != nil {
			return nil, err
		}
		if c != ':' {
			return nil, fmt.Errorf("unexpected character %q instead of a colon", c)
		}
		p.pos++
		value, err := p.value(nil, depth+1)
		if err != nil {
			return nil, err
		}
		members = append(members, member{key, value})
	}
	p.pos++
	slices.SortStableFunc(members, func(a, b member) int { return CompareKeys(a.key, b.key) })
	dst = append(dst, '{')
	for i, m := range members {
		if i > 0 {
			if members[i-1].key == m.key {
				return nil, fmt.Errorf("duplicate key %q", m.key)
			}
			dst = append(dst, ',')
		}
		var err error
		if dst, err = AppendString(dst, m.key); err != nil {
			return nil, err
		}
		dst = append(append(dst, ':'), m.value...)
	}
	return append(dst, '}'), nil
}

func (p *parser) number(dst []byte) ([]byte, error) {
	start := p.pos
	integer := true
	digits := func() bool {
		from := p.pos
		for p.pos < len(p.in) && '0' <= p.in[p.pos] && p.in[p.pos] <= '9' {
			p.pos++
		}
		return p.pos > from
	}
	at := func(set ...byte) bool { return p.pos < len(p.in) && slices.Contains(set, p.in[p.pos]) }
	if at('-') {
		p.pos++
	}
	if at('0') {
		p.pos++
	} else if !digits() {
		return nil, errors.New("a number without digits")
	}
	if at('.') {
		integer = false
		p.pos++
		if !digits() {
			return nil, errors.New("a number without digits after its point")
		}
	}
	if at('e', 'E') {
		integer = false
		p.pos++
		if at('+', '-') {
			p.pos++
		}
		if !digits() {
			return nil, errors.New("a number without digits in its exponent")
		}
	}
	text := string(p.in[start:p.pos])
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return nil, fmt.Errorf("number %s is out of range", text)
	}
	if integer && (f > MaxInt || f < -MaxInt) {
		return nil, fmt.Errorf("integer %s is beyond ±(2^53−1) and has no exact JSON number", text)
	}
	return AppendFloat(dst, f)
}

func (p *parser) string() (string, error) {
	p.pos++
	var out []byte
	for p.pos < len(p.in) {
		c := p.in[p.pos]
		switch {
		case c == '"':
			p.pos++
			return string(out), nil
		case c < ' ':
			return "", fmt.Errorf("control character %q in a string", c)
		case c != '\\':
			out = append(out, c)
			p.pos++
		default:
			var err error
			if out, err = p.escape(out); err != nil {
				return "", err
			}
		}
	}
	return "", errEnd
}

func (p *parser) escape(out []byte) ([]byte, error) {
	if p.pos+1 >= len(p.in) {
		return nil, errEnd
	}
	c := p.in[p.pos+1]
	p.pos += 2
	switch c {
	case '"', '\\', '/':
		return append(out, c), nil
	case 'b':
		return append(out, '\b'), nil
	case 'f':
		return append(out, '\f'), nil
	case 'n':
		return append(out, '\n'), nil
	case 'r':
		return append(out, '\r'), nil
	case 't':
		return append(out, '\t'), nil
	case 'u':
	default:
		return nil, fmt.Errorf("unknown escape \\%c", c)
	}
	r, err := p.hex4()
	if err != nil {
		return nil, err
	}
	if utf16.IsSurrogate(r) {
		if p.pos+1 >= len(p.in) || p.in[p.pos] != '\\' || p.in[p.pos+1] != 'u' {
			return nil, fmt.Errorf("lone surrogate \\u%04x", r)
		}
		p.pos += 2
		low, err := p.hex4()
		if err != nil {
			return nil, err
		}
		pair := utf16.DecodeRune(r, low)
		if pair == utf8.RuneError {
			return nil, fmt.Errorf("lone surrogate \\u%04x", r)
		}
		r = pair
	}
	return utf8.AppendRune(out, r), nil
}

func (p *parser) hex4() (rune, error) {
	if p.pos+4 > len(p.in) {
		return 0, errEnd
	}
	v, err := strconv.ParseUint(string(p.in[p.pos:p.pos+4]), 16, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is not four hex digits", p.in[p.pos:p.pos+4])
	}
	p.pos += 4
	return rune(v), nil
}
