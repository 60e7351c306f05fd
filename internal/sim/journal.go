package sim

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// journal writes the true times to a file: one JSON object a line, times in
// nanoseconds of CLOCK_MONOTONIC. It never makes the engine wait.
type journal struct {
	file *os.File
	mu   sync.Mutex
	next []any
	wake chan struct{}
	done chan error
}

// startRecord is the first line.
type startRecord struct {
	Kind     string      `json:"kind"` // start
	At       int64       `json:"t"`
	Wall     time.Time   `json:"wall"` // the same moment
	Version  string      `json:"version"`
	Seed     uint64      `json:"seed"`
	Faults   []string    `json:"faults"`
	Names    Names       `json:"names"`
	Factors  multipliers `json:"factors"` // on the time of every step
	Listen   string      `json:"listen"`
	Batching Batching    `json:"batching"`
	Slots    int         `json:"slots"`
}

// requestRecord is one request that the engine is through with. Emissions are
// pairs of the time just before a write and the output tokens in it.
type requestRecord struct {
	Kind       string     `json:"kind"` // request
	Number     int64      `json:"number"`
	ID         string     `json:"id"` // of the answer
	RequestID  string     `json:"request_id,omitempty"`
	Chat       bool       `json:"chat"`
	Stream     bool       `json:"stream"`
	Received   int64      `json:"t_received"` // the body was read
	Admitted   *int64     `json:"t_admitted"` // joined a batch; null: never
	Ended      int64      `json:"t_ended"`
	Prompt     int        `json:"prompt_tokens"`
	Cached     int        `json:"cached_tokens"`
	Completion int        `json:"completion_tokens"`
	Preempted  int        `json:"preempted"`
	Finish     string     `json:"finish"` // length, stop, cancelled, or the fault that cut it
	Faults     string     `json:"faults,omitempty"`
	Emissions  [][2]int64 `json:"emissions"`
}

// stopRecord is the last line of an engine that was not killed.
type stopRecord struct {
	Kind     string `json:"kind"` // stop
	At       int64  `json:"t"`
	Finished int64  `json:"finished"`
	Steps    int64  `json:"steps"`
	Overruns int64  `json:"overruns"` // steps that began late because writing took longer than a step
	// How late steps ended: upper bounds within a factor of two. It is 0 without a step.
	LateP50 int64 `json:"late_p50_ns"`
	LateP99 int64 `json:"late_p99_ns"`
	LateMax int64 `json:"late_max_ns"`
}

func openJournal(path string) (*journal, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	j := &journal{file: file, wake: make(chan struct{}, 1), done: make(chan error, 1)}
	go j.write()
	return j, nil
}

func (j *journal) add(record any) {
	j.mu.Lock()
	j.next = append(j.next, record)
	j.mu.Unlock()
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

func (j *journal) request(r *request, now int64) {
	record := requestRecord{
		Kind: "request", Number: r.number, ID: r.id, RequestID: r.given, Chat: r.chat, Stream: r.stream,
		Received: r.received, Ended: now, Prompt: r.prompt, Cached: r.cached, Completion: r.made,
		Preempted: r.preempted, Finish: r.finish, Faults: r.fate.names, Emissions: make([][2]int64, len(r.emissions)),
	}
	if r.admitted != 0 {
		record.Admitted = &r.admitted
	}
	for i, e := range r.emissions {
		record.Emissions[i] = [2]int64{e.at, int64(e.tokens)}
	}
	j.add(record)
}

// write runs until the last record, which is nil.
func (j *journal) write() {
	out := bufio.NewWriterSize(j.file, 1<<16)
	lines := json.NewEncoder(out)
	var failed error
	for range j.wake {
		j.mu.Lock()
		batch := j.next
		j.next = nil
		j.mu.Unlock()
		for _, record := range batch {
			if record == nil {
				j.done <- errors.Join(failed, out.Flush(), j.file.Close())
				return
			}
			if failed == nil {
				failed = lines.Encode(record)
			}
		}
		if failed == nil {
			failed = out.Flush() // a reader sees whole lines soon
		}
	}
}

// close writes what is left and returns the first error of all.
func (j *journal) close() error {
	j.add(nil)
	if err := <-j.done; err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	return nil
}
