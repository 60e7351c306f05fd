package slurm

import (
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
)

// MaxTaskIndex is the highest array index that any Slurm allows.
const MaxTaskIndex = 4_000_000

// Indexes is a set of array indexes as Slurm writes it, without duplicates.
type Indexes []Range

// Range is First, First+Step, … up to and including Last.
type Range struct{ First, Last, Step int }

// Has reports whether the index is in the set.
func (x Indexes) Has(index int) bool {
	for _, r := range x {
		if index >= r.First && index <= r.Last && (index-r.First)%r.Step == 0 {
			return true
		}
	}
	return false
}

// All yields every index, range by range.
func (x Indexes) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for _, r := range x {
			for i := r.First; i <= r.Last; i += r.Step {
				if !yield(i) {
					return
				}
			}
		}
	}
}

// String writes the set as Slurm reads it: 1-3,7,10-20:5.
func (x Indexes) String() string {
	var b strings.Builder
	for i, r := range x {
		if i > 0 {
			b.WriteByte(',')
		}
		switch {
		case r.First == r.Last:
			fmt.Fprintf(&b, "%d", r.First)
		case r.Step == 1:
			fmt.Fprintf(&b, "%d-%d", r.First, r.Last)
		default:
			fmt.Fprintf(&b, "%d-%d:%d", r.First, r.Last, r.Step)
		}
	}
	return b.String()
}

// IndexesOf is the shortest set of the given ascending indexes.
func IndexesOf(ascending []int) Indexes {
	var x Indexes
	for _, i := range ascending {
		if n := len(x); n > 0 && x[n-1].Last == i-1 {
			x[n-1].Last = i
			continue
		}
		x = append(x, Range{i, i, 1})
	}
	return x
}

// ParseIndexes reads "3", "1-5%2", "[2,7-9%4]" and "0-200:2". An expression that
// Slurm has cut ("1,5,...") is an error: the missing indexes are not known.
func ParseIndexes(text string) (Indexes, error) {
	s := text
	if strings.HasPrefix(s, "[") {
		if !strings.HasSuffix(s, "]") {
			return nil, fmt.Errorf("array expression %q is cut", text)
		}
		s = s[1 : len(s)-1]
	}
	s, _, _ = strings.Cut(s, "%") // how many at once
	if s == "" {
		return nil, fmt.Errorf("array expression %q is empty", text)
	}
	var x Indexes
	for part := range strings.SplitSeq(s, ",") {
		r, err := parseRange(part)
		if err != nil {
			return nil, fmt.Errorf("array expression %q: %w", text, err)
		}
		x = append(x, r)
	}
	return x, nil
}

func parseRange(s string) (Range, error) {
	first, rest, isRange := strings.Cut(s, "-")
	a, err := index(first)
	if err != nil {
		return Range{}, err
	}
	if !isRange {
		return Range{a, a, 1}, nil
	}
	last, step, stepped := strings.Cut(rest, ":")
	b, err := index(last)
	if err != nil {
		return Range{}, err
	}
	k := 1
	if stepped {
		if k, err = index(step); err != nil || k == 0 {
			return Range{}, fmt.Errorf("bad step %q", step)
		}
	}
	if b < a {
		return Range{}, fmt.Errorf("%d-%d runs backwards", a, b)
	}
	return Range{a, b - (b-a)%k, k}, nil
}

var errIndex = errors.New("bad array index")

func index(s string) (int, error) {
	if s == "" || len(s) > 7 || strings.Trim(s, "0123456789") != "" {
		return 0, fmt.Errorf("%w %q", errIndex, s)
	}
	n, err := strconv.Atoi(s)
	if err != nil || n > MaxTaskIndex {
		return 0, fmt.Errorf("%w %q", errIndex, s)
	}
	return n, nil
}

// JobID is a job's identifier as Slurm shows it to people.
type JobID struct {
	Job   int64   // the array's own id for a task
	Tasks Indexes // nil for a job that is no array
	Het   int     // offset in a heterogeneous job; -1 for none
	Step  string  // "batch", "extern", "0"…; "" for the job itself
}

// ParseJobID reads "12", "12_3", "12_[4-6%2]", "60+1", "12_3.batch", "9+0.0".
func ParseJobID(text string) (JobID, error) {
	id := JobID{Het: -1}
	digits := len(text) - len(strings.TrimLeft(text, "0123456789"))
	if digits == 0 || digits > 10 {
		return JobID{}, fmt.Errorf("bad job id %q", text)
	}
	n, err := strconv.ParseInt(text[:digits], 10, 64)
	if err != nil || n == 0 {
		return JobID{}, fmt.Errorf("bad job id %q", text)
	}
	id.Job = n
	rest, step, hasStep := strings.Cut(text[digits:], ".")
	if hasStep && step == "" {
		return JobID{}, fmt.Errorf("bad job id %q", text)
	}
	id.Step = step
	switch {
	case rest == "":
	case rest[0] == '_':
		if id.Tasks, err = ParseIndexes(rest[1:]); err != nil {
			return JobID{}, fmt.Errorf("bad job id %q: %w", text, err)
		}
	case rest[0] == '+':
		if id.Het, err = index(rest[1:]); err != nil {
			return JobID{}, fmt.Errorf("bad job id %q: %w", text, err)
		}
	default:
		return JobID{}, fmt.Errorf("bad job id %q", text)
	}
	return id, nil
}

// Task is the array index of a single task; false for a job without an array and
// for a row that stands for several pending tasks.
func (id JobID) Task() (int, bool) {
	if len(id.Tasks) == 1 && id.Tasks[0].First == id.Tasks[0].Last {
		return id.Tasks[0].First, true
	}
	return 0, false
}
