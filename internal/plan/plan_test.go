package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func names(batches []Batch) [][]string {
	var all [][]string
	for _, b := range batches {
		var tasks []string
		for _, t := range b.Tasks {
			text := ""
			for _, r := range t.Runs {
				text += fmt.Sprintf("%s%d ", r.SettingHash, r.Repeat)
			}
			tasks = append(tasks, text)
		}
		all = append(all, tasks)
	}
	return all
}

func TestPack(t *testing.T) {
	const minute = time.Minute
	sweep := func(settings string, repeats int, limit time.Duration) []Run {
		var runs []Run
		for k := range repeats {
			for _, s := range settings {
				runs = append(runs, Run{ID: int64(len(runs)), SettingHash: string(s), Checkpoint: "c", Repeat: k, Limit: limit})
			}
		}
		return runs
	}
	withCheckpoint := func(runs []Run, c string) []Run {
		runs = slices.Clone(runs)
		for i := range runs {
			runs[i].Checkpoint = c
		}
		return runs
	}
	limits := Limits{TaskTime: 60 * minute, TaskOverhead: 5 * minute, ArrayTasks: 100}
	tests := []struct {
		name   string
		runs   []Run
		limits Limits
		want   [][]string
	}{
		{"nothing", nil, limits, nil},
		{"settings share a task, repeats do not", sweep("abcd", 3, 10*minute), limits, [][]string{{"a0 b0 c0 d0 ", "a1 b1 c1 d1 ", "a2 b2 c2 d2 "}}},
		{"one setting", sweep("a", 3, 10*minute), limits, [][]string{{"a0 ", "a1 ", "a2 "}}},
		{"tasks end at their time", sweep("abcd", 1, 25*minute), limits, [][]string{{"a0 b0 ", "c0 d0 "}}},
		{"a task goes on into the next round", sweep("abc", 2, 25*minute), limits, [][]string{{"a0 b0 ", "c0 a1 ", "b1 c1 "}}},
		{"a long run has its own task", sweep("ab", 1, 100*minute), limits, [][]string{{"a0 ", "b0 "}}},
		{"arrays end at the index limit", sweep("a", 5, minute), Limits{TaskTime: time.Hour, ArrayTasks: 2}, [][]string{{"a0 ", "a1 "}, {"a2 ", "a3 "}, {"a4 "}}},
		{
			"checkpoints are kept apart and together", append(append(sweep("a", 1, minute), withCheckpoint(sweep("x", 1, minute), "d")...), sweep("b", 1, minute)...), limits,
			[][]string{{"a0 b0 ", "x0 "}},
		},
	}
	for _, tt := range tests {
		got, refused := Pack(tt.runs, tt.limits)
		if diff := cmp.Diff(tt.want, names(got)); diff != "" || len(refused) > 0 {
			t.Errorf("%s: %s%v", tt.name, diff, refused)
		}
	}
}

func TestPack_TimeLimits(t *testing.T) {
	limits := Limits{TaskTime: time.Hour, TaskOverhead: 90 * time.Second, ArrayTasks: 10}
	run := func(limit time.Duration, s Shape) []Run {
		return []Run{{ID: 1, SettingHash: "a", Limit: limit, Shape: s}}
	}
	b, _ := Pack(run(10*time.Minute, Shape{}), limits)
	if b[0].TimeLimit != 12*time.Minute {
		t.Errorf("%v: seconds are not rounded up to minutes", b[0].TimeLimit)
	}
	b, _ = Pack(run(10*time.Minute, Shape{TimeLimit: 30 * time.Minute}), limits)
	if b[0].TimeLimit != 30*time.Minute {
		t.Errorf("%v: the user's limit is not used", b[0].TimeLimit)
	}
	for _, s := range []Shape{{TimeLimit: 10 * time.Minute}, {Partition: "short", MaxTime: 10 * time.Minute}, {TimeLimit: 2 * time.Hour, MaxTime: time.Hour}} {
		b, refused := Pack(run(10*time.Minute, s), limits)
		if len(b) != 0 || len(refused) != 1 || refused[0].Reason == "" {
			t.Errorf("%+v: %v, refused %v", s, b, refused)
		}
	}
	short := Shape{Partition: "short"}
	short.Bound(time.Hour, "QOS a")
	short.Bound(10*time.Minute, "partition short")
	short.Bound(0, "nobody")
	short.Bound(20*time.Minute, "QOS b")
	if _, refused := Pack(run(10*time.Minute, short), limits); refused[0].Reason != "needs 12m0s, partition short allows at most 10m0s" {
		t.Errorf("refused %v", refused)
	}
	b, _ = Pack(append(run(20*time.Minute, Shape{MaxTime: 30 * time.Minute}), Run{ID: 2, SettingHash: "b", Limit: 20 * time.Minute, Shape: Shape{MaxTime: 30 * time.Minute}}), limits)
	if len(b[0].Tasks) != 2 || b[0].TimeLimit != 22*time.Minute {
		t.Errorf("tasks are packed beyond the partition's limit: %v %v", names(b), b[0].TimeLimit)
	}
}

func TestBatch_Head(t *testing.T) {
	runs := []Run{{ID: 1, SettingHash: "a", Limit: time.Minute}, {ID: 2, SettingHash: "a", Limit: time.Hour}}
	b, _ := Pack(runs, Limits{TaskTime: time.Hour, ArrayTasks: 10})
	if h := b[0].Head(1); len(h.Tasks) != 1 || h.TimeLimit != time.Minute || len(b[0].Tasks) != 2 {
		t.Errorf("head %+v", h)
	}
	if h := b[0].Head(5); len(h.Tasks) != 2 {
		t.Errorf("head %+v", h)
	}
}

func drawRuns(t *rapid.T) []Run {
	n := rapid.IntRange(0, 60).Draw(t, "n")
	repeat := map[string]int{}
	var runs []Run
	for i := range n {
		s := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(t, "setting")
		// A setting has one checkpoint and one shape, but a retry may exclude a node.
		shape := Shape{Partition: map[bool]string{true: "p", false: "q"}[s < "d"], Nodes: 1}
		if rapid.IntRange(0, 4).Draw(t, "retry") == 0 {
			shape.Exclude = "n1"
		}
		runs = append(runs, Run{
			ID: int64(i + 1), SettingHash: s, Checkpoint: string(s[0] % 3), Repeat: repeat[s],
			Limit: time.Duration(rapid.IntRange(1, 90).Draw(t, "minutes")) * time.Minute, Shape: shape,
		})
		repeat[s]++
	}
	return runs
}

func TestPack_Properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		runs := drawRuns(t)
		limits := Limits{
			TaskTime:     time.Duration(rapid.IntRange(1, 120).Draw(t, "task")) * time.Minute,
			TaskOverhead: time.Duration(rapid.IntRange(0, 300).Draw(t, "overhead")) * time.Second,
			ArrayTasks:   rapid.IntRange(1, 7).Draw(t, "array"),
		}
		batches, refused := Pack(runs, limits)
		if again, _ := Pack(runs, limits); !cmp.Equal(batches, again) {
			t.Fatal("two plans of one input differ")
		}
		seen := map[int64]int{}
		for _, r := range refused {
			seen[r.Run.ID]++
		}
		taskCount := map[Shape]int{}
		batchCount := map[Shape]int{}
		for _, b := range batches {
			taskCount[b.Shape] += len(b.Tasks)
			batchCount[b.Shape]++
			if len(b.Tasks) == 0 || len(b.Tasks) > limits.ArrayTasks || b.TimeLimit%time.Minute != 0 {
				t.Fatalf("array of %d tasks, %v", len(b.Tasks), b.TimeLimit)
			}
			for _, task := range b.Tasks {
				checkTask(t, b, task, limits, seen)
			}
		}
		for shape, n := range taskCount {
			if want := (n + limits.ArrayTasks - 1) / limits.ArrayTasks; batchCount[shape] != want {
				t.Fatalf("%d arrays for %d tasks, want %d", batchCount[shape], n, want)
			}
		}
		for _, r := range runs {
			if seen[r.ID] != 1 {
				t.Fatalf("run %d is planned %d times", r.ID, seen[r.ID])
			}
		}
	})
}

func checkTask(t *rapid.T, b Batch, task Task, limits Limits, seen map[int64]int) {
	settings := map[string]bool{}
	sum := limits.TaskOverhead
	for _, r := range task.Runs {
		seen[r.ID]++
		sum += r.Limit
		if r.Shape != b.Shape || r.Checkpoint != task.Runs[0].Checkpoint || settings[r.SettingHash] {
			t.Fatalf("task %+v mixes shapes, checkpoints or repeats", task)
		}
		settings[r.SettingHash] = true
	}
	if len(task.Runs) == 0 || task.Limit != sum || task.Limit > b.TimeLimit {
		t.Fatalf("task of %d runs and %v in an array of %v", len(task.Runs), task.Limit, b.TimeLimit)
	}
	if len(task.Runs) > 1 && task.Limit > limits.TaskTime {
		t.Fatalf("a task of %d runs is planned for %v, limit %v", len(task.Runs), task.Limit, limits.TaskTime)
	}
}
