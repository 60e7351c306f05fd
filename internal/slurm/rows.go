package slurm

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The separators that squeue and sacct are told to use. No site allows control
// characters in accounts, partitions and node names; names and comments come
// last in a row, and only rows of our own user are asked for.
const (
	fieldSep  = "\x1f"
	recordSep = "\x1e"
)

// Skipped is a row that was not understood, and why.
type Skipped struct {
	Row string
	Err error
}

// maxSkipped bounds how many are kept.
const maxSkipped = 20

type skips []Skipped

func (s *skips) add(row string, err error) {
	if len(*s) < maxSkipped {
		if len(row) > 700 {
			row = row[:300] + "…" + row[len(row)-300:] // the name is last
		}
		*s = append(*s, Skipped{strings.ToValidUTF8(row, "\uFFFD"), err})
	}
}

// row gives the fields of a record by the names of its columns, and collects
// the first error.
type row struct {
	columns []string
	fields  []string
	err     error
}

func (r *row) text(column string) string {
	for i, c := range r.columns {
		if c == column {
			v := strings.ToValidUTF8(strings.TrimSpace(r.fields[i]), "\uFFFD")
			if v == "(null)" {
				return ""
			}
			return v
		}
	}
	return "" // this Slurm does not have the column
}

func (r *row) fail(column, problem string) {
	if r.err == nil {
		r.err = fmt.Errorf("%s: %s", column, problem)
	}
}

func (r *row) integer(column string) int64 {
	v := r.text(column)
	if v == "" || v == "N/A" {
		return 0
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		r.fail(column, fmt.Sprintf("%q is not a number", v))
	}
	return n
}

// instant reads a time; the zero time where Slurm has none.
func (r *row) instant(column string) time.Time {
	v := r.text(column)
	t, err := parseTime(v)
	if err != nil {
		r.fail(column, err.Error())
	}
	return t
}

// parseTime reads epoch seconds (SLURM_TIME_FORMAT=%s) and Slurm's words for
// times that are not there. A local time without an offset is refused: reading
// it in another zone than Slurm's would move every job.
func parseTime(v string) (time.Time, error) {
	switch v {
	case "", "N/A", "Unknown", "None", "NONE", "(null)", "0":
		return time.Time{}, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 || n > 1<<40 {
		return time.Time{}, fmt.Errorf("%q is not a time in epoch seconds", v)
	}
	return time.Unix(n, 0).UTC(), nil
}

// exitStatus reads "3:0" and "0:9": exit code and signal. Empty is zero: a batch
// step that a lost node left behind has none.
func (r *row) exitStatus(column string) (code, signal int) {
	v := r.text(column)
	if v == "" {
		return 0, 0
	}
	a, b, ok := strings.Cut(v, ":")
	code, err1 := strconv.Atoi(a)
	signal, err2 := strconv.Atoi(b)
	if !ok || err1 != nil || err2 != nil {
		r.fail(column, fmt.Sprintf("%q is not an exit status", v))
	}
	return code, signal
}

func (r *row) nodes(column string) []string {
	v := r.text(column)
	if v == "" || v == "None assigned" || v == "N/A" || v == "None" {
		return nil
	}
	nodes, err := ExpandHosts(v)
	if err != nil {
		r.fail(column, err.Error())
	}
	return nodes
}

// gpus reads the number of GPUs from a TRES string: the untyped count where it
// is given, else the sum of the typed ones; never both.
func gpus(tres string) int {
	total, typed := -1, 0
	for part := range strings.SplitSeq(tres, ",") {
		key, value, ok := strings.Cut(part, "=")
		n, err := strconv.Atoi(value)
		if !ok || err != nil || n < 0 {
			continue
		}
		switch {
		case key == "gres/gpu":
			total = n
		case strings.HasPrefix(key, "gres/gpu:"):
			typed += n
		}
	}
	if total >= 0 {
		return total
	}
	return typed
}
