package slurm

import (
	"strings"
	"testing"
)

// What parses must be sane; nothing may panic or take for ever.

func FuzzParseQueue(f *testing.F) {
	f.Add(capture(f, "squeue-live.out"))
	f.Add(capture(f, "squeue-ended.out"))
	f.Add("1\x1f1\x1f[0-4000000:3%2]\x1fPENDING\x1f1\x1f\x1f\x1fu\x1fr\x1fk\x1fj\x1e")
	f.Fuzz(func(t *testing.T, text string) {
		for _, j := range parseQueue(text, queueNames()).Jobs {
			if j.Raw <= 0 || j.ArrayID <= 0 || len(j.Nodes) > maxHosts {
				t.Fatalf("%+v", j)
			}
		}
	})
}

func FuzzParseAccounting(f *testing.F) {
	f.Add(capture(f, "sacct-live.out"))
	f.Add(capture(f, "sacct-ended.out"))
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range parseAccounting(text, accountingColumns).Records {
			if r.Raw <= 0 || r.GPUs < 0 || r.Ended() && r.End.IsZero() {
				t.Fatalf("%+v", r)
			}
		}
	})
}

func FuzzParseSteps(f *testing.F) {
	f.Add(capture(f, "sacct-steps-ended.out"))
	f.Fuzz(func(t *testing.T, text string) {
		for _, s := range parseSteps(text, capturedStepColumns) {
			if s.Raw <= 0 || s.Step == "" {
				t.Fatalf("%+v", s)
			}
		}
	})
}

func FuzzParseIndexes(f *testing.F) {
	for _, s := range []string{"3", "1-5%2", "[2,7-9%4]", "0-200:2", "1,5,..."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		x, err := ParseIndexes(text)
		if err != nil {
			return
		}
		again, err := ParseIndexes(x.String())
		if err != nil || again.String() != x.String() {
			t.Fatalf("%q → %q → %v, %v", text, x, again, err)
		}
	})
}

func FuzzParseJobID(f *testing.F) {
	for _, s := range []string{"12", "12_3.batch", "9+0.0", "12_[4-6%2]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if id, err := ParseJobID(text); err == nil && id.Job <= 0 {
			t.Fatalf("%q: %+v", text, id)
		}
	})
}

func FuzzExpandHosts(f *testing.F) {
	for _, s := range []string{"gpu[1-2,05],l4-1", "r[1-2]n[1-2]", "n[1-"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		names, err := ExpandHosts(list)
		if err == nil && (len(names) == 0 || len(names) > maxHosts) {
			t.Fatalf("%q: %d names", list, len(names))
		}
	})
}

func FuzzParseSettings(f *testing.F) {
	f.Add(capture(f, "scontrol-show-config.out"))
	f.Fuzz(func(_ *testing.T, text string) { _, _ = parseSettings(text) })
}

func FuzzParsePartitions(f *testing.F) {
	f.Add(capture(f, "scontrol-show-partition.out"))
	f.Add("PartitionName=a MaxTime=1-00:00:00 QoS=short Default=YES\nNo partitions in the system\n")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := parsePartitions(text)
		for _, p := range list {
			if err == nil && (p.Name == "" || p.MaxTime < 0) {
				t.Fatalf("%+v", p)
			}
		}
		if w := wall(list, "", Limits{}, nil); w.Max < 0 || w.Max > 0 && w.Source == "" {
			t.Fatalf("%+v", w)
		}
	})
}

func FuzzParseNodes(f *testing.F) {
	f.Add("NodeName=gpu1 CPUTot=96 Gres=gpu:h100:8(S:0-1),nic:1 State=IDLE+DRAIN Partitions=gpu,all Version=22.05.8 Reason=a b=c\n")
	f.Add("NodeName=a Gres=no_consume,gpu:-1\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, n := range parseNodes(text) {
			for kind, count := range n.GRES {
				if n.Name == "" || count < 0 {
					t.Fatalf("%+v: %s", n, kind)
				}
			}
			_ = n.Usable()
		}
	})
}

func FuzzParseLimits(f *testing.F) {
	f.Add(capture(f, "sacctmgr-show-assoc.out"), capture(f, "sacctmgr-show-qos.out"), "debug")
	f.Add("ml|normal|10||1-00:00:00\nml|normal|5||\n", "debug|DenyOnLimit,OverPartQOS|00:30:00|2||\n", "debug")
	f.Fuzz(func(t *testing.T, associations, qos, name string) {
		l, _ := parseAssociations(associations)
		if l.MaxSubmit < 0 || l.maxWall < 0 || l.MaxSubmit > 0 && l.Source == "" {
			t.Fatalf("%+v", l)
		}
		known := parseQOS(qos)
		l.qos = known[name]
		w := wall([]Partition{{Name: "a", Default: true, MaxTime: 1, QOS: name}}, "", l, known)
		if w.Max < 0 || w.Max > 0 && w.Source == "" {
			t.Fatalf("%+v", w)
		}
	})
}

func FuzzParseUser(f *testing.F) {
	f.Add("ada|ml|None|ml|gpu|normal,high|normal|ml\n", "ada")
	f.Fuzz(func(t *testing.T, text, name string) {
		if u, err := parseUser(text, name); err == nil && (u.Name != name || len(u.Associations) == 0) {
			t.Fatalf("%+v", u)
		}
	})
}

func FuzzParseState(f *testing.F) {
	f.Add("CANCELLED by 1000")
	f.Add("RUNNING+COMPLETING")
	f.Fuzz(func(t *testing.T, text string) {
		if s, uid := parseState(text); uid < -1 || strings.Contains(string(s), " ") {
			t.Fatalf("%q: %s by %d", text, s, uid)
		}
	})
}

func FuzzParseTimes(f *testing.F) {
	for _, s := range []string{"1700000000", "Unknown", "2-03:04:05", "UNLIMITED"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if at, err := parseTime(text); err == nil && !at.IsZero() && at.Unix() < 0 {
			t.Fatalf("%q: %s", text, at)
		}
		if d, err := span(text); err == nil && d < 0 {
			t.Fatalf("%q: %s", text, d)
		}
		_ = gpus(text)
	})
}

func FuzzClassify(f *testing.F) {
	f.Add("17\n", "", 0)
	f.Add("", capture(f, "sbatch-ctld-stopped-timeout.err"), 1)
	f.Fuzz(func(t *testing.T, stdout, stderr string, exit int) {
		var err *Error
		if exit != 0 {
			err = &Error{Program: "sbatch", Exit: exit, Stderr: stderr}
		}
		s := classify(output{stdout: stdout, stderr: stderr, exit: exit}, err)
		if s.Outcome == Created && (s.JobID <= 0 || exit != 0) {
			t.Fatalf("created %d from %q with status %d", s.JobID, stdout, exit)
		}
		if s.Outcome == Refused && strings.Contains(stderr, "timed out") {
			t.Fatal("a time-out is taken for a refusal")
		}
	})
}
