// Package playback is a kit for testing clients of streamed HTTP answers: a
// server that plays given bytes at given times over real TCP, cut wherever a
// test likes, and a slow, plain reading of the same bytes that says what a client
// must find in them. It promises to write each segment as one write, not before
// its time; it refuses to be fast.
package playback

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Ending is what the server does after the last byte.
type Ending int

// The ways an answer ends.
const (
	KeepOpen Ending = iota // read the next request, and play again
	Close                  // an orderly end of the connection
	Reset                  // a TCP reset
	Silence                // nothing, until the client leaves
)

// Segment is what one write sends, at a time after the request was read whole.
type Segment struct {
	At    time.Duration
	Bytes []byte
}

// Script is an answer: raw bytes, from the status line on.
type Script struct {
	Name     string
	Segments []Segment
	Ending   Ending
}

// Whole is a script of one write.
func Whole(name string, response []byte, ending Ending) Script {
	return Script{Name: name, Segments: []Segment{{Bytes: response}}, Ending: ending}
}

// Bytes is the whole answer.
func (s Script) Bytes() []byte {
	var all []byte
	for _, seg := range s.Segments {
		all = append(all, seg.Bytes...)
	}
	return all
}

// Cut splits the script before the byte at each offset; what is behind a cut
// comes gap later, and so does everything after it.
func (s Script) Cut(gap time.Duration, offsets ...int) Script {
	at := map[int]bool{}
	for _, o := range offsets {
		at[o] = true
	}
	out := Script{Name: s.Name, Ending: s.Ending}
	var late time.Duration
	offset := 0
	for _, seg := range s.Segments {
		var piece []byte
		flush := func() {
			if len(piece) > 0 {
				out.Segments = append(out.Segments, Segment{seg.At + late, piece})
				piece = nil
			}
		}
		for _, b := range seg.Bytes {
			if at[offset] && offset > 0 {
				flush()
				late += gap
			}
			piece = append(piece, b)
			offset++
		}
		flush()
	}
	return out
}

// EverySplit yields the script cut in two at every byte offset.
func (s Script) EverySplit(gap time.Duration) iter.Seq2[int, Script] {
	return func(yield func(int, Script) bool) {
		for offset := 1; offset < len(s.Bytes()); offset++ {
			cut := s.Cut(gap, offset)
			cut.Name = fmt.Sprintf("%s/cut at %d", s.Name, offset)
			if !yield(offset, cut) {
				return
			}
		}
	}
}

// ByteByByte is the script with every byte a write of its own.
func (s Script) ByteByByte(gap time.Duration) Script {
	offsets := make([]int, len(s.Bytes()))
	for i := range offsets {
		offsets[i] = i
	}
	return s.Cut(gap, offsets...)
}

// Cases of an answer cut short: EveryEnd yields the script's first n bytes for
// every n, ended as given.
func (s Script) EveryEnd(ending Ending) iter.Seq2[int, Script] {
	return func(yield func(int, Script) bool) {
		all := s.Bytes()
		for n := range len(all) {
			short := Whole(fmt.Sprintf("%s/first %d bytes", s.Name, n), all[:n], ending)
			if !yield(n, short) {
				return
			}
		}
	}
}

// Capture is an exchange recorded from a real server: DIR/NAME.request,
// .response, and .timing.jsonl with a line for each read of the recorder.
type Capture struct {
	Script
	Request []byte
}

// LoadCapture reads a capture; its segments are the recorder's reads. One
// that was edited afterwards (a path taken out) comes in one segment.
func LoadCapture(dir, name string) (Capture, error) {
	read := func(kind string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, name+kind)) }
	request, err1 := read(".request")
	response, err2 := read(".response")
	timing, err3 := os.Open(filepath.Join(dir, name+".timing.jsonl"))
	if err := errors.Join(err1, err2, err3); err != nil {
		return Capture{}, fmt.Errorf("load capture: %w", err)
	}
	defer timing.Close()
	c := Capture{Script: Script{Name: name, Ending: Close}, Request: request}
	total := 0
	lines := json.NewDecoder(bufio.NewReader(timing))
	for {
		var r struct {
			N      int   `json:"n"`
			Offset int   `json:"off"`
			Micros int64 `json:"t_us"`
		}
		if err := lines.Decode(&r); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return Capture{}, fmt.Errorf("load capture %s: %w", name, err)
		}
		if r.N == 0 {
			continue
		}
		if r.Offset != total || r.N < 0 {
			return Capture{}, fmt.Errorf("load capture %s: read of %d bytes at %d, behind %d", name, r.N, r.Offset, total)
		}
		total += r.N
		c.Segments = append(c.Segments, Segment{time.Duration(r.Micros) * time.Microsecond, response[min(r.Offset, len(response)):min(total, len(response))]})
	}
	if total != len(response) {
		c.Segments = []Segment{{Bytes: response}} // edited after it was recorded
	}
	return c, nil
}

// LoadCaptures reads all captures of a folder, by name.
func LoadCaptures(dir string) ([]Capture, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.response"))
	if err != nil {
		return nil, fmt.Errorf("load captures: %w", err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("load captures: none in %s", dir)
	}
	var all []Capture
	for _, file := range files {
		c, err := LoadCapture(dir, strings.TrimSuffix(filepath.Base(file), ".response"))
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}
