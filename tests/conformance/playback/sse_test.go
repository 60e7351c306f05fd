package playback_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/sse"
	"sbench/tests/conformance/playback"
)

// seen is an event as both readings tell it.
type seen struct {
	Name, Data string
	End        int
	Complete   bool
	Text       bool
	Content    bool
	Usage      bool
	Done       bool
}

// slow is what the kit reads.
func slow(body []byte) (events []seen, broken bool) {
	t := playback.ReadEvents(body)
	for _, e := range t.Events {
		events = append(events, seen{e.Name, e.Data, e.End, e.Complete(), e.Text, e.Content, e.Usage, e.Done})
	}
	return events, t.Broken != "" && !strings.HasPrefix(t.Broken, "not an event stream")
}

// quick is what package sse reads from the same bytes in the given pieces, with
// the product's rules of where to stop believing.
func quick(pieces ...[]byte) (events []seen, broken bool, err error) {
	var split sse.Splitter
	var parser sse.Parser
	stop, done := false, false
	take := func(ev sse.Event) {
		if stop {
			return
		}
		e := seen{Name: string(ev.Name), Data: string(ev.Data), End: int(ev.End), Complete: ev.Complete}
		var c sse.Chunk
		whole := parser.Parse(ev.Data, &c)
		blank := len(bytes.Trim(ev.Data, " \t\r\n")) == 0
		switch {
		case whole && c.Done:
			e.Done, done = true, true
		case blank:
		case done:
			stop = true
		case !whole:
			stop = ev.Complete
			broken = ev.Complete && e.Name != "error"
		default:
			e.Text, e.Content, e.Usage = c.Text(), c.Content, c.HasUsage
			stop = c.Error || e.Name == "error"
		}
		events = append(events, e)
	}
	for _, piece := range pieces {
		for rest := bytes.Clone(piece); ; {
			ev, more, ok, err := split.Next(rest)
			if err != nil {
				return nil, false, err
			}
			if !ok {
				break
			}
			rest = more
			take(ev)
		}
	}
	ev, ok, err := split.End()
	if err != nil {
		return nil, false, err
	}
	if ok {
		take(ev)
	}
	return events, broken, nil
}

func compare(body []byte, pieces ...[]byte) error {
	want, broken := slow(body)
	got, gotBroken, err := quick(pieces...)
	if err != nil {
		return err
	}
	if diff := cmp.Diff(want, got); diff != "" || broken != gotBroken {
		return fmt.Errorf("%q: -slow +quick, broken %v and %v\n%s", body, broken, gotBroken, diff)
	}
	return nil
}

// TestSSE: package sse finds in the bodies of all cases what the slow reading
// finds, cut at every byte.
func TestSSE(t *testing.T) {
	t.Parallel()
	for _, c := range playback.Cases() {
		if !playback.Known(c.Script).Stream {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			body := playback.Body(c.Bytes())
			for i := range body {
				if err := compare(body, body[:i], body[i:]); err != nil {
					t.Fatalf("cut at %d: %v", i, err)
				}
			}
			single := make([][]byte, len(body))
			for i := range body {
				single[i] = body[i : i+1]
			}
			if err := compare(body, single...); err != nil {
				t.Fatalf("byte by byte: %v", err)
			}
		})
	}
}

// FuzzSSE: the same for any bytes, cut in three.
func FuzzSSE(f *testing.F) {
	for _, c := range playback.Cases() {
		if body := playback.Body(c.Bytes()); len(body) < 400 {
			f.Add(body, uint16(7), uint16(40))
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, a, b uint16) {
		i, j := int(a)%(len(body)+1), int(b)%(len(body)+1)
		if err := compare(body, body[:min(i, j)], body[min(i, j):max(i, j)], body[max(i, j):]); err != nil {
			t.Error(err)
		}
	})
}
