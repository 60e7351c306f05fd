package slurmtest

import (
	"os"
	"time"

	"sbench/internal/slurm"
)

// Job is a submission.
type Job struct {
	ID      int64
	Array   bool
	Options map[string]string // long option names without dashes, as sbatch got them
	Script  string            // the script's path
	Held    bool
	// Throttle is the array's limit of tasks at once; 0 is none.
	Throttle int
	Submit   int64 // epoch seconds
	Tasks    []Task
	// Forgotten: the controller does not know the job any more.
	Forgotten bool
}

// Name is the job's name.
func (j *Job) Name() string { return j.Options["job-name"] }

// Task is an array task, or the only one of another job.
type Task struct {
	Index  int
	Raw    int64 // 0 until it has started
	State  slurm.State
	Submit int64
	Start  int64
	End    int64
	Node   string
	Exit   int
	ByUID  int // who cancelled it
	// Eligible: the task was not held at some time; sacct shows others only when
	// they are asked for by id.
	Eligible bool
	// Past are earlier starts that a requeue has ended.
	Past []Task `json:",omitempty"`
}

type state struct {
	Conf   Config
	Faults Faults
	NextID int64
	Jobs   []*Job
	Later  []*Job
}

// find returns the job with the id; the last one where ids were used again.
func (s *state) find(id int64) *Job {
	for i := len(s.Jobs) - 1; i >= 0; i-- {
		if j := s.Jobs[i]; j.ID == id && !j.Forgotten {
			return j
		}
	}
	return nil
}

func now() int64 { return time.Now().Unix() }

// create gives the job its id and puts it into the queue.
func (s *state) create(j *Job) {
	j.ID = s.NextID
	s.NextID++
	j.Submit = now()
	for i := range j.Tasks {
		j.Tasks[i].Submit, j.Tasks[i].Eligible = j.Submit, !j.Held
	}
	s.Jobs = append(s.Jobs, j)
}

// unstarted counts tasks that still need a raw id; the last of an array gets the
// array's own.
func (j *Job) unstarted() int {
	n := 0
	for _, t := range j.Tasks {
		if t.State == slurm.Pending && t.Raw == 0 {
			n++
		}
	}
	return n
}

func (s *state) start(j *Job, t *Task, node string) {
	if t.Raw == 0 {
		last := j.unstarted() == 1
		t.Raw = j.ID
		if j.Array && !last {
			t.Raw = s.NextID
			s.NextID++
		}
	}
	t.State, t.Start, t.Node, t.Eligible = slurm.Running, now(), node, true
}

func (t *Task) end(in slurm.State, exit int) {
	t.State, t.End, t.Exit = in, now(), exit
}

func (t *Task) cancel() {
	t.end(slurm.Cancelled, 0)
	t.ByUID = os.Getuid()
}

func (t *Task) requeue(as slurm.State) {
	past := *t
	past.end(as, 0)
	past.Past = nil
	t.Past = append(t.Past, past)
	t.State, t.Start, t.End, t.Node, t.Submit = slurm.Pending, 0, 0, "", now()
}

// active counts tasks that count against submit limits.
func (s *state) active() int {
	n := 0
	for _, j := range s.Jobs {
		for _, t := range j.Tasks {
			if !j.Forgotten && t.State.Phase() != slurm.PhaseEnded {
				n++
			}
		}
	}
	return n
}
