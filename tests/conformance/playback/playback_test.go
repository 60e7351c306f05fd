package playback_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/result"
	"sbench/tests/conformance/playback"
)

// TestKnown: the slow reading finds what was written down by hand.
func TestKnown(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, c := range playback.Cases() {
		if names[c.Name] {
			t.Errorf("two cases %q", c.Name)
		}
		names[c.Name] = true
		truth := playback.Known(c.Script)
		got := playback.Case{Script: c.Script, Planned: c.Planned, Outcome: truth.Outcome(c.Planned), Text: truth.Text, Output: -1}
		for _, e := range truth.Events {
			if e.Text {
				got.Texts++
			}
		}
		if truth.Output != nil {
			got.Output = *truth.Output
		}
		if diff := cmp.Diff(c, got); diff != "" {
			t.Errorf("%s: -by hand +read\n%s\n%+v", c.Name, diff, truth)
		}
	}
}

// TestEveryEnd: no beginning of an answer is a success, unless it says so.
func TestEveryEnd(t *testing.T) {
	t.Parallel()
	for _, c := range playback.Cases() {
		for n, short := range c.EveryEnd(playback.Close) {
			truth := playback.Known(short)
			if truth.Outcome(-1) == result.OutcomeOK && !truth.Done && truth.Finish == "" && truth.Stream {
				t.Errorf("%s: the first %d bytes are a success", c.Name, n)
			}
		}
	}
}

// TestCut: however a script is cut, its bytes stay the same and its times never
// go back.
func TestCut(t *testing.T) {
	t.Parallel()
	s := playback.Timed("t", 3, []playback.Tick{{At: 10 * time.Millisecond, Text: "a"}, {At: 20 * time.Millisecond, Text: " b"}})
	n := 0
	for _, cut := range s.EverySplit(time.Millisecond) {
		n++
		if !bytes.Equal(cut.Bytes(), s.Bytes()) {
			t.Fatal("other bytes")
		}
		if len(cut.Segments) != 3 && len(cut.Segments) != 2 {
			t.Fatalf("%d segments", len(cut.Segments))
		}
	}
	if n != len(s.Bytes())-1 {
		t.Errorf("%d cuts of %d bytes", n, len(s.Bytes()))
	}
	if got := len(s.ByteByByte(0).Segments); got != len(s.Bytes()) {
		t.Errorf("%d segments of %d bytes", got, len(s.Bytes()))
	}
	late := s.Cut(time.Second, 5)
	if late.Segments[1].At != time.Second+10*time.Millisecond || late.Segments[2].At != time.Second+20*time.Millisecond {
		t.Errorf("%v and %v", late.Segments[1].At, late.Segments[2].At)
	}
}

// TestTimes: an event comes with the segment that ends it.
func TestTimes(t *testing.T) {
	t.Parallel()
	ms := time.Millisecond
	s := playback.Timed("t", 3, []playback.Tick{{At: 10 * ms, Text: "a"}, {At: 20 * ms, Text: " b"}, {At: 40 * ms, Text: " c"}})
	truth := playback.Known(s)
	times := truth.Times(s)
	if diff := cmp.Diff([]time.Duration{10 * ms, 20 * ms, 40 * ms}, times.Texts); diff != "" {
		t.Error(diff)
	}
	for name, c := range map[string]struct {
		got  *time.Duration
		want time.Duration
	}{
		"head": {times.Head, 10 * ms}, "tok1": {times.Tok1, 10 * ms}, "content1": {times.Content1, 10 * ms},
		"tokN": {times.TokN, 40 * ms}, "usage": {times.Usage, 40 * ms}, "done": {times.Done, 40 * ms},
	} {
		if c.got == nil || *c.got != c.want {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
	first := truth.Events[0].End
	if got := truth.Times(s.Cut(5*ms, first-1)).Tok1; *got != 15*ms {
		t.Errorf("cut before the event's last byte: %v, want 15ms", *got)
	}
	if got := truth.Times(s.Cut(5*ms, first)).Tok1; *got != 10*ms {
		t.Errorf("cut behind the event: %v, want 10ms", *got)
	}
}

// TestServe: segments come in order, not before their time, and the end is the
// script's.
func TestServe(t *testing.T) {
	t.Parallel()
	s := playback.Timed("t", 3, []playback.Tick{{At: 5 * time.Millisecond, Text: "a"}, {At: 25 * time.Millisecond, Text: " b"}})
	server := playback.Start(t, s)
	c, err := net.Dial("tcp", server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in := bufio.NewReader(c)
	for range 2 { // twice on one connection
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
		response, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
			t.Fatalf("%v: %s", err, body)
		}
	}
	for deadline := time.Now().Add(5 * time.Second); len(server.Plays()) < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no second playing")
		}
	}
	for _, play := range server.Plays() {
		if string(play.Request) != "hi" || len(play.Sent) != 2 {
			t.Fatalf("%+v", play)
		}
		for i, seg := range s.Segments {
			if early := seg.At - play.Sent[i].Sub(play.Received); early > 0 {
				t.Errorf("segment %d was sent %v early", i, early)
			}
		}
	}
}

func TestServe_Endings(t *testing.T) {
	t.Parallel()
	for ending, want := range map[playback.Ending]error{playback.Close: io.EOF, playback.Reset: syscall.ECONNRESET} {
		c, err := net.Dial("tcp", playback.Serve(t, playback.Whole("x", []byte("HTTP/1.1 200 OK\r\n"), ending)))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		for {
			if _, err = c.Read(make([]byte, 100)); err != nil {
				break
			}
		}
		if !errors.Is(err, want) {
			t.Errorf("ending %d: %v, want %v", ending, err, want)
		}
	}
}

func TestReader(t *testing.T) {
	t.Parallel()
	s := playback.Whole("x", []byte("abcdef"), playback.Reset).Cut(0, 2, 3)
	r := s.Reader()
	var reads []string
	for {
		p := make([]byte, 100)
		n, err := r.Read(p)
		if err != nil {
			if !errors.Is(err, playback.ErrReset) {
				t.Error(err)
			}
			break
		}
		reads = append(reads, string(p[:n]))
	}
	if diff := cmp.Diff([]string{"ab", "c", "def"}, reads); diff != "" {
		t.Error(diff)
	}
}

var update = flag.Bool("update", false, "rewrite the golden files")

// captured is what a capture says, in a form that a person can check.
type captured struct {
	Status  int            `json:"status"`
	Outcome result.Outcome `json:"outcome"`
	Events  int            `json:"events"`
	Texts   int            `json:"texts"`
	Prompt  *int           `json:"prompt_tokens"`
	Output  *int           `json:"output_tokens"`
	Finish  string         `json:"finish"`
	Done    bool           `json:"done"`
	Text    string         `json:"text"` // the first 40 bytes
}

// TestCaptures: what the recorded answers of real servers say.
func TestCaptures(t *testing.T) {
	t.Parallel()
	dirs, err := filepath.Glob("../sse/*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no captures: %v", err)
	}
	all := map[string]captured{}
	for _, dir := range dirs {
		list, err := playback.LoadCaptures(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list {
			truth := playback.Known(c.Script)
			got := captured{
				Status: truth.Status, Outcome: truth.Outcome(-1), Events: len(truth.Events), Prompt: truth.Prompt, Output: truth.Output,
				Finish: truth.Finish, Done: truth.Done, Text: truth.Text[:min(len(truth.Text), 40)],
			}
			for _, e := range truth.Events {
				if e.Text {
					got.Texts++
				}
			}
			all[filepath.Base(dir)+"/"+c.Name] = got
		}
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/captures.json"
	if *update {
		if err := os.WriteFile(golden, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(text)+"\n"); diff != "" {
		t.Errorf("-%s +read (run with -update to accept)\n%s", golden, diff)
	}
}
