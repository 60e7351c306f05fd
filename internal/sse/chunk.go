package sse

import (
	"bytes"
	"unicode/utf8"
)

// Usage is a server's token count. A field is -1 where the server did not say.
type Usage struct {
	Prompt, Completion, Cached, Reasoning int
}

// Chunk is what one data event, or one whole answer, says.
type Chunk struct {
	Done    bool // the event was [DONE]
	Choices bool // it has at least one choice
	Role    bool // a choice names its role
	// Content and Reasoning say whether there is text of either kind. Content is
	// answer text, refusals and tool calls.
	Content, Reasoning bool
	// Finish is the last non-null finish_reason, "" for none.
	Finish string
	// HasUsage says whether usage is an object; Usage is set only then.
	HasUsage bool
	Usage    Usage
	// Error says that the server reports a failure; Message is what it says.
	Error   bool
	Message string
}

// Text says whether the event carries generated text.
func (c *Chunk) Text() bool { return c.Content || c.Reasoning }

// Parser reads the JSON of events. It remembers the shape of the last event, so
// that one which differs only in its text is not parsed again. The zero value is
// ready; it is not safe for concurrent use.
type Parser struct {
	prefix, suffix []byte
	shape          Chunk
	known          bool

	// Answer, if not nil, collects the decoded answer text (not reasoning).
	Answer *[]byte

	textFrom, textTo int // the only text literal of the event, or -1
	texts            int
}

// Parse reads the data of one event into c. It returns false for what is not
// one valid JSON object (or [DONE]).
func (p *Parser) Parse(data []byte, c *Chunk) bool {
	if p.known && p.Answer == nil && p.matches(data) {
		*c = p.shape
		return true
	}
	*c = Chunk{}
	data = bytes.Trim(data, " \t\r\n") // JSON's own white space, not Unicode's
	if string(data) == "[DONE]" {
		c.Done = true
		return true
	}
	p.texts, p.textFrom = 0, -1
	s := scanner{data: data}
	if !p.object(&s, c) {
		return false
	}
	if s.space(); s.at != len(data) {
		return false
	}
	p.remember(data, c)
	return true
}

// remember keeps the shape of an ordinary text event: one text literal, and
// nothing that must be read anew.
func (p *Parser) remember(data []byte, c *Chunk) {
	p.known = p.texts == 1 && c.Text() && c.Finish == "" && !c.HasUsage && !c.Error
	if !p.known {
		return
	}
	p.prefix = append(p.prefix[:0], data[:p.textFrom]...)
	p.suffix = append(p.suffix[:0], data[p.textTo:]...)
	p.shape = *c
}

// TextSpan is where the text lies in data, which was parsed last, if an event that
// differs from it only in a plain text parses to the same chunk.
func (p *Parser) TextSpan(data []byte) (from, to int, ok bool) {
	from, to = len(p.prefix), len(data)-len(p.suffix)
	return from, to, p.known && from < to && bytes.HasPrefix(data, p.prefix)
}

// matches says whether data is the remembered event but for a plain, non-empty
// text. Such an event parses to the same chunk.
func (p *Parser) matches(data []byte) bool {
	n := len(data) - len(p.prefix) - len(p.suffix)
	if n <= 0 || !bytes.HasPrefix(data, p.prefix) || !bytes.HasSuffix(data, p.suffix) {
		return false
	}
	ascii := true
	for _, b := range data[len(p.prefix) : len(p.prefix)+n] {
		if b < ' ' || b == '"' || b == '\\' {
			return false
		}
		ascii = ascii && b < utf8.RuneSelf
	}
	return ascii || utf8.Valid(data[len(p.prefix):len(p.prefix)+n])
}

// object reads the event's object.
func (p *Parser) object(s *scanner, c *Chunk) bool {
	return s.object(func(key []byte) bool {
		switch string(key) {
		case "choices":
			return s.arrayOr(func() bool {
				c.Choices = true
				return p.choice(s, c)
			})
		case "usage":
			return p.usage(s, c)
		case "error":
			return p.failure(s, c)
		case "object":
			v, ok := s.stringOr()
			if string(v) == "error" {
				c.Error = true
			}
			return ok
		case "message":
			// The text of an error object; anything else has it inside choices.
			v, ok := s.stringOr()
			if c.Message == "" {
				c.Message = unescape(v)
			}
			return ok
		case "content":
			// llama-server's own endpoint has the text at the top.
			return p.text(s, &c.Content, true)
		}
		return s.skip()
	})
}

func (p *Parser) choice(s *scanner, c *Chunk) bool {
	return s.objectOr(func(key []byte) bool {
		switch string(key) {
		case "text":
			return p.text(s, &c.Content, true)
		case "delta", "message":
			return s.objectOr(func(key []byte) bool { return p.delta(s, c, key) })
		case "finish_reason":
			v, ok := s.stringOr()
			if len(v) > 0 {
				c.Finish = unescape(v)
			}
			return ok
		}
		return s.skip()
	})
}

func (p *Parser) delta(s *scanner, c *Chunk, key []byte) bool {
	switch string(key) {
	case "content":
		if s.peek() == '[' {
			// A list of parts, as multimodal servers send it.
			return s.arrayOr(func() bool {
				return s.objectOr(func(key []byte) bool {
					if string(key) == "text" {
						return p.text(s, &c.Content, true)
					}
					return s.skip()
				})
			})
		}
		return p.text(s, &c.Content, true)
	case "refusal":
		return p.text(s, &c.Content, false)
	case "reasoning_content", "reasoning":
		return p.text(s, &c.Reasoning, false)
	case "role":
		v, ok := s.stringOr()
		c.Role = c.Role || len(v) > 0
		return ok
	case "tool_calls":
		return s.arrayOr(func() bool {
			return s.objectOr(func(key []byte) bool {
				if string(key) == "function" {
					return p.function(s, c)
				}
				return s.skip()
			})
		})
	case "function_call":
		return p.function(s, c)
	}
	return s.skip()
}

// function reads a tool call: its arguments are generated text (METRICS v1 t_tok1).
func (p *Parser) function(s *scanner, c *Chunk) bool {
	return s.objectOr(func(key []byte) bool {
		switch string(key) {
		case "arguments":
			return p.text(s, &c.Content, false)
		}
		return s.skip()
	})
}

// text reads a string or anything else; has becomes true for a non-empty string.
func (p *Parser) text(s *scanner, has *bool, answer bool) bool {
	v, ok := s.stringOr()
	if !ok || len(v) == 0 {
		return ok
	}
	*has = true
	p.texts++
	p.textTo = s.at - 1
	p.textFrom = p.textTo - len(v)
	if answer && p.Answer != nil {
		*p.Answer = appendUnescaped(*p.Answer, v)
	}
	return true
}

func (p *Parser) usage(s *scanner, c *Chunk) bool {
	if s.peek() != '{' {
		return s.skip()
	}
	c.HasUsage = true
	c.Usage = Usage{-1, -1, -1, -1}
	return s.object(func(key []byte) bool {
		switch string(key) {
		case "prompt_tokens":
			return s.count(&c.Usage.Prompt)
		case "completion_tokens":
			return s.count(&c.Usage.Completion)
		case "prompt_tokens_details":
			return s.objectOr(func(key []byte) bool {
				if string(key) == "cached_tokens" {
					return s.count(&c.Usage.Cached)
				}
				return s.skip()
			})
		case "completion_tokens_details":
			return s.objectOr(func(key []byte) bool {
				if string(key) == "reasoning_tokens" {
					return s.count(&c.Usage.Reasoning)
				}
				return s.skip()
			})
		}
		return s.skip()
	})
}

// failure reads the error field: null and false are none.
func (p *Parser) failure(s *scanner, c *Chunk) bool {
	switch s.peek() {
	case 'n', 'f':
		return s.skip()
	case '{':
		c.Error = true
		return s.object(func(key []byte) bool {
			if string(key) == "message" {
				v, ok := s.stringOr()
				if len(v) > 0 {
					c.Message = unescape(v)
				}
				return ok
			}
			return s.skip()
		})
	case '"':
		c.Error = true
		v, ok := s.stringOr()
		c.Message = unescape(v)
		return ok
	}
	c.Error = true
	return s.skip()
}
