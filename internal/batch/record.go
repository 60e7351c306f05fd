package batch

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Record is what a task writes about itself while it runs, one line per event,
// into <logs>/<RecordName>. It is how the daemon learns which run is under way
// without asking Slurm, and what remains where Slurm keeps no accounting.
type Record struct {
	Begun time.Time
	Node  string
	// Claim is "held", "none" (another job measures the task, or all of it is
	// sealed), "failed", or "" before the claim.
	Claim string
	Runs  []RunRecord
	Done  time.Time // zero while the task runs, or when it was killed
}

// RunRecord is what became of a run in the task.
type RunRecord struct {
	Run     int64
	Started time.Time // zero where it was not started
	Ended   time.Time // zero while it runs, or when it was killed
	Exit    int       // srun's exit status
	Reason  string    // why it was not started: "time", "stopped", "cancelled"
}

// RecordName is the file name of the record of one start of a task.
func RecordName(task int, jobIDRaw int64, restart int) string {
	return fmt.Sprintf("task-%d.%d-r%d.record", task, jobIDRaw, restart)
}

// ParseRecordName reads a RecordName.
func ParseRecordName(name string) (task int, jobIDRaw int64, restart int, ok bool) {
	n, err := fmt.Sscanf(name, "task-%d.%d-r%d.record", &task, &jobIDRaw, &restart)
	if n != 3 || err != nil || task < 0 || jobIDRaw <= 0 || restart < 0 || name != RecordName(task, jobIDRaw, restart) {
		return 0, 0, 0, false
	}
	return task, jobIDRaw, restart, true
}

// MaxRecord is how many bytes of a record are read: 1,000 runs and more.
const MaxRecord = 256 << 10

// ParseRecord reads a record. It may be cut anywhere, and its lines are not to be
// trusted: a line that is not understood is passed over.
func ParseRecord(data []byte) Record {
	var r Record
	index := map[int64]int{}
	run := func(id int64) *RunRecord {
		i, known := index[id]
		if !known {
			i = len(r.Runs)
			index[id] = i
			r.Runs = append(r.Runs, RunRecord{Run: id})
		}
		return &r.Runs[i]
	}
	text := string(data)
	for {
		line, rest, whole := strings.Cut(text, "\n")
		if !whole {
			return r
		}
		text = rest
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		at, ok := recordTime(f[0])
		if !ok {
			continue
		}
		var id int64
		if len(f) > 2 && f[1] != "begin" {
			if id, _ = strconv.ParseInt(f[2], 10, 64); id < 0 {
				continue
			}
		}
		switch {
		case f[1] == "begin" && len(f) == 3:
			r.Begun, r.Node = at, f[2]
		case f[1] == "claim" && len(f) == 3:
			r.Claim = f[2]
		case f[1] == "start" && id > 0:
			x := run(id)
			x.Started, x.Ended, x.Exit, x.Reason = at, time.Time{}, 0, ""
		case f[1] == "end" && id > 0 && len(f) == 4:
			if exit, err := strconv.Atoi(f[3]); err == nil {
				x := run(id)
				x.Ended, x.Exit = at, exit
			}
		case f[1] == "skip" && id > 0 && len(f) == 4:
			run(id).Reason = f[3]
		case f[1] == "done":
			r.Done = at
		}
	}
}

func recordTime(text string) (time.Time, bool) {
	sec, err := strconv.ParseInt(text, 10, 64)
	if err != nil || sec <= 0 || sec > 1<<40 {
		return time.Time{}, false
	}
	return time.Unix(sec, 0).UTC(), true
}
