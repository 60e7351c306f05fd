package sse

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestParser_Shapes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		data string
		want Chunk
		ok   bool
	}{
		"text":         {`{"choices":[{"text":"a"}]}`, Chunk{Choices: true, Content: true}, true},
		"empty text":   {`{"choices":[{"text":""}]}`, Chunk{Choices: true}, true},
		"delta":        {`{"choices":[{"delta":{"role":"assistant","content":"a"}}]}`, Chunk{Choices: true, Content: true, Role: true}, true},
		"role":         {`{"choices":[{"delta":{"role":"assistant","content":null}}]}`, Chunk{Choices: true, Role: true}, true},
		"parts":        {`{"choices":[{"delta":{"content":[{"type":"text","text":"a"},null]}}]}`, Chunk{Choices: true, Content: true}, true},
		"reasoning":    {`{"choices":[{"delta":{"reasoning":"a"}}]}`, Chunk{Choices: true, Reasoning: true}, true},
		"reasoning 2":  {`{"choices":[{"delta":{"reasoning_content":"a","content":""}}]}`, Chunk{Choices: true, Reasoning: true}, true},
		"tool name":    {`{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":""}}]}}]}`, Chunk{Choices: true}, true},
		"tool null":    {`{"choices":[{"delta":{"tool_calls":[null,{"function":null}]}}]}`, Chunk{Choices: true}, true},
		"function":     {`{"choices":[{"delta":{"function_call":{"arguments":"{"}}}]}`, Chunk{Choices: true, Content: true}, true},
		"refusal":      {`{"choices":[{"delta":{"refusal":"no"}}]}`, Chunk{Choices: true, Content: true}, true},
		"delta null":   {`{"choices":[{"delta":null,"finish_reason":"stop"}]}`, Chunk{Choices: true, Finish: "stop"}, true},
		"message":      {`{"choices":[{"message":{"content":"a"}}]}`, Chunk{Choices: true, Content: true}, true},
		"no choices":   {`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}`, Chunk{HasUsage: true, Usage: Usage{3, 4, -1, -1}}, true},
		"choices null": {`{"choices":null}`, Chunk{}, true},
		"usage null":   {`{"usage":null}`, Chunk{}, true},
		"usage nulls":  {`{"usage":{"prompt_tokens":null,"prompt_tokens_details":null}}`, Chunk{HasUsage: true, Usage: Usage{-1, -1, -1, -1}}, true},
		"usage details": {
			`{"usage":{"prompt_tokens":9,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":7},"completion_tokens_details":{"reasoning_tokens":6}}}`,
			Chunk{HasUsage: true, Usage: Usage{9, 8, 7, 6}},
			true,
		},
		"usage negative": {`{"usage":{"prompt_tokens":-1}}`, Chunk{}, false},
		"usage fraction": {`{"usage":{"prompt_tokens":1.5}}`, Chunk{}, false},
		"usage huge":     {`{"usage":{"prompt_tokens":99999999999999999999}}`, Chunk{}, false},
		"error":          {`{"error":{"message":"no \"memory\"","code":500}}`, Chunk{Error: true, Message: `no "memory"`}, true},
		"error text":     {`{"error":"no"}`, Chunk{Error: true, Message: "no"}, true},
		"error null":     {`{"error":null}`, Chunk{}, true},
		"error false":    {`{"error":false}`, Chunk{}, true},
		"error object":   {`{"object":"error","message":"no"}`, Chunk{Error: true, Message: "no"}, true},
		"native":         {`{"content":"a","stop":false}`, Chunk{Content: true}, true},
		"done":           {" [DONE] ", Chunk{Done: true}, true},
		"spaces":         {" {\t\"choices\" : [ { \"text\" : \"a\" } ] }\r\n", Chunk{Choices: true, Content: true}, true},
		"empty":          {"", Chunk{}, false},
		"null":           {"null", Chunk{}, false},
		"array":          {"[]", Chunk{}, false},
		"open":           {`{"choices":[`, Chunk{}, false},
		"trailing":       {`{} x`, Chunk{}, false},
		"comma":          {`{"a":1,}`, Chunk{}, false},
		"leading zero":   {`{"a":01}`, Chunk{}, false},
		"control":        {"{\"a\":\"\n\"}", Chunk{}, false},
		"escape":         {`{"a":"\x"}`, Chunk{}, false},
		"short unicode":  {`{"a":"\u12"}`, Chunk{}, false},
		"bad UTF-8":      {"{\"a\":\"\xff\"}", Chunk{}, false},
		"bare key":       {`{a:1}`, Chunk{}, false},
	} {
		var p Parser
		var got Chunk
		if ok := p.Parse([]byte(c.data), &got); ok != c.ok {
			t.Errorf("%s: %v", name, ok)
		} else if diff := cmp.Diff(c.want, got); ok && diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestParser_Answer(t *testing.T) {
	t.Parallel()
	var text []byte
	p := Parser{Answer: &text}
	var c Chunk
	for _, data := range []string{`{"choices":[{"text":"gr\u00f6\u00dfe \ud83d\ude80"}]}`, `{"choices":[{"text":" x"}]}`, `{"choices":[{"delta":{"reasoning":"hm","content":"y\n"}}]}`} {
		if !p.Parse([]byte(data), &c) {
			t.Fatal(data)
		}
	}
	if string(text) != "größe 🚀 xy\n" {
		t.Errorf("%q", text)
	}
}

// Nesting is bounded, and so are lines and events.
func TestLimits(t *testing.T) {
	t.Parallel()
	var p Parser
	var c Chunk
	if p.Parse([]byte(strings.Repeat(`{"a":[`, 100_000)), &c) {
		t.Error("nesting without end is accepted")
	}
	var s Splitter
	line := bytes.Repeat([]byte("x"), 1<<20)
	_, _, _, err := s.Next([]byte("data: "))
	for range 17 {
		if err == nil {
			_, _, _, err = s.Next(line)
		}
	}
	if !errors.Is(err, ErrTooLong) {
		t.Errorf("a line of 17 MiB: %v", err)
	}
	s = Splitter{}
	err = nil
	for i := 0; i < 40 && err == nil; i++ {
		_, _, _, err = s.Next(append(append([]byte("data:"), line...), '\n'))
	}
	if !errors.Is(err, ErrTooLong) {
		t.Errorf("an event of 40 MiB: %v", err)
	}
	// One of 15 MiB is fine.
	s = Splitter{}
	big := append(append([]byte("data: "), bytes.Repeat([]byte("x"), 15<<20)...), "\n\n"...)
	ev, _, ok, err := s.Next(big)
	if !ok || err != nil || len(ev.Data) != 15<<20 {
		t.Errorf("an event of 15 MiB: %v, %v, %d bytes", ok, err, len(ev.Data))
	}
}

// FuzzParser: what is accepted is JSON and an object; what differs from the event
// before only in its text is read as if it were parsed anew.
func FuzzParser(f *testing.F) {
	for _, data := range []string{
		`{"choices":[{"text":"a"}]}`, `{"choices":[{"delta":{"content":" b"},"finish_reason":null}],"usage":null}`,
		`{"usage":{"prompt_tokens":3}}`, `{"error":{"message":"x"}}`, `[DONE]`, `{"a":[1,-2.5e+3,true,null,"\u00e9"]}`,
	} {
		f.Add([]byte(data), []byte(`{"choices":[{"text":"z"}]}`))
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var p Parser
		var c Chunk
		for _, data := range [][]byte{first, second, first} {
			ok := p.Parse(data, &c)
			var fresh Parser
			var want Chunk
			if again := fresh.Parse(data, &want); again != ok || (ok && c != want) {
				t.Fatalf("%q behind %q: %v %+v, alone %v %+v", data, first, ok, c, again, want)
			}
			if c.Done {
				continue
			}
			valid := json.Valid(data) && bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{"))
			if ok && !valid {
				t.Fatalf("%q is accepted", data)
			}
			if valid && !ok && utf8.Valid(data) && !bytes.Contains(data, []byte("tokens")) && bytes.Count(data, []byte("{"))+bytes.Count(data, []byte("[")) < maxDepth {
				t.Fatalf("%q is refused", data)
			}
		}
	})
}

// BenchmarkParse is one event whose shape is known, and one whose is not.
func BenchmarkParse(b *testing.B) {
	one := []byte(`{"id":"cmpl-0123456789abcdef","object":"text_completion","created":1795962519,"model":"llama-3.1-8b-instruct","choices":[{"index":0,"text":" cluster","logprobs":null,"finish_reason":null}],"usage":null}`)
	other := bytes.Replace(one, []byte("519"), []byte("520"), 1)
	b.Run("known", func(b *testing.B) {
		var p Parser
		var c Chunk
		b.ReportAllocs()
		for b.Loop() {
			p.Parse(one, &c)
		}
	})
	b.Run("new", func(b *testing.B) {
		var p Parser
		var c Chunk
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if i%2 == 0 {
				p.Parse(one, &c)
			} else {
				p.Parse(other, &c)
			}
		}
	})
}
