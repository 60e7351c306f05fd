package loadgen

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/result"
	"sbench/internal/setting"
	"sbench/tests/conformance/playback"
)

// received feeds an exchange with the pieces of an answer, piece i at time i+1,
// and decodes it as if the server had ended it that way.
func received(a *arena, planned int, ending playback.Ending, pieces ...[]byte) result.Request {
	x := &exchange{dispatch: 1, conn: 1, written: 1}
	x.req.Output = int32(planned)
	for i, p := range pieces {
		if len(p) == 0 {
			continue
		}
		done, err := x.feed(a, append([]byte(nil), p...), int64(i+1))
		switch {
		case err != nil:
			x.ending, x.why = endingMalformed, err.Error()
		case done:
			x.ending = endingComplete
		}
		if x.ending != endingNone {
			break
		}
	}
	if x.ending == endingNone {
		switch {
		case ending == playback.Reset:
			x.ending, x.why = endingReset, "reset"
		case ending == playback.Close && x.reply.state == stateClose:
			x.ending = endingComplete
		case ending == playback.Close:
			x.ending, x.why = endingEOF, "closed"
		default:
			x.ending = endingCutOff
		}
	}
	x.end = int64(len(pieces) + 1)
	d := decoder{request: setting.Request{IgnoreEOS: planned >= 0}}
	row := d.row(x)
	a.take(x)
	return row
}

// told is what a row and the kit's slow reading both tell.
type told struct {
	Outcome                         result.Outcome
	Status                          int
	Prompt, Output                  int
	Finish                          string
	Texts                           []int64 // when each event with text came
	Headers, Chunk1, Content1, Done int64
}

func orMinus(v *int32) int {
	if v == nil {
		return -1
	}
	return int(*v)
}

func orZero(t *int64) int64 {
	if t == nil {
		return 0
	}
	return *t
}

func tellRow(r *result.Request) told {
	t := told{
		Outcome: r.Outcome, Status: int(r.HTTPStatus), Prompt: orMinus(r.InputTokens), Output: orMinus(r.OutputTokens),
		Finish: r.FinishReason, Texts: r.EventTimes, Headers: orZero(r.THeaders), Chunk1: orZero(r.TChunk1),
		Content1: orZero(r.TContent1), Done: orZero(r.TDone),
	}
	return t
}

// tellTruth is what the kit says, for an answer cut at those offsets.
func tellTruth(truth playback.Truth, planned int, cuts ...int) told {
	at := func(end int) int64 {
		when := int64(1)
		for _, c := range cuts {
			if end > c {
				when++
			}
		}
		return when
	}
	t := told{Outcome: truth.Outcome(planned), Status: truth.Status, Prompt: -1, Output: -1, Finish: truth.Finish}
	if truth.Status > 0 {
		t.Headers = at(truth.Head)
	}
	if truth.Prompt != nil {
		t.Prompt = *truth.Prompt
	}
	if truth.Output != nil {
		t.Output = *truth.Output
	}
	if !truth.Stream {
		return t
	}
	for _, e := range truth.Events {
		if t.Chunk1 == 0 && (e.Complete() || e.Done || json.Valid([]byte(e.Data))) {
			t.Chunk1 = at(e.End)
		}
		if e.Text {
			t.Texts = append(t.Texts, at(e.End))
		}
		if e.Content && t.Content1 == 0 {
			t.Content1 = at(e.End)
		}
		if e.Done && t.Done == 0 {
			t.Done = at(e.End)
		}
	}
	return t
}

// agree compares one answer, cut in two, with the slow reading of it.
func agree(a *arena, s playback.Script, planned, cut int) error {
	all := s.Bytes()
	row := received(a, planned, s.Ending, all[:cut], all[cut:])
	got, want := tellRow(&row), tellTruth(playback.Known(s), planned, cut)
	if diff := cmp.Diff(want, got); diff != "" {
		return fmt.Errorf("cut at %d (-slow +row): %s\n%s", cut, row.Detail, diff)
	}
	return nil
}

// Each scripted answer, cut at every byte, becomes the row that a slow reading of
// it demands, with the times of the reads that brought each event.
func TestConformance_Cases(t *testing.T) {
	t.Parallel()
	var a arena
	for _, c := range playback.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			for cut := range len(c.Bytes()) + 1 {
				if err := agree(&a, c.Script, c.Planned, cut); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// No beginning of an answer, the connection then closed or broken, is taken for
// more than the slow reading takes it for.
func TestConformance_EveryEnd(t *testing.T) {
	t.Parallel()
	var a arena
	for _, c := range playback.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			for _, ending := range []playback.Ending{playback.Close, playback.Reset} {
				for n, short := range c.EveryEnd(ending) {
					if ending == playback.Reset && strings.HasPrefix(string(c.Bytes()), "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close") {
						continue // a body that any end completes is not complete for us when the connection broke
					}
					if err := agree(&a, short, c.Planned, n); err != nil {
						t.Fatalf("%s: %v", short.Name, err)
					}
				}
			}
		})
	}
}

// What three servers really sent, cut at every byte (long ones at a sample).
func TestConformance_Captures(t *testing.T) {
	t.Parallel()
	var a arena
	folders, err := filepath.Glob("../../../tests/conformance/sse/*")
	if err != nil || len(folders) == 0 {
		t.Fatalf("no captures: %v", err)
	}
	for _, folder := range folders {
		captures, err := playback.LoadCaptures(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range captures {
			t.Run(filepath.Base(folder)+"/"+c.Name, func(t *testing.T) {
				t.Parallel()
				size := len(c.Bytes())
				step := 1 + size*size/1_000_000
				for cut := 0; cut <= size; cut += step {
					if err := agree(&a, c.Script, -1, cut); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}
