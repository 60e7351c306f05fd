package lifecycle

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestExitClass_CodesAreABijection(t *testing.T) {
	byCode, byClass := map[int]ExitClass{}, map[ExitClass]int{}
	for _, c := range Classes() {
		if other, dup := byCode[c.Code]; dup {
			t.Errorf("code %d is both %s and %s", c.Code, other, c.Exit)
		}
		if _, dup := byClass[c.Exit]; dup {
			t.Errorf("class %s has two rows", c.Exit)
		}
		byCode[c.Code], byClass[c.Exit] = c.Exit, c.Code
		if c.Exit == ExitLost {
			continue
		}
		if c.Code < 0 || c.Code > 99 {
			t.Errorf("%s: code %d is not one that Slurm reports unchanged", c.Exit, c.Code)
		}
		if got, ok := FromCode(c.Exit.Code()); !ok || got != c.Exit {
			t.Errorf("FromCode(%s.Code()) = %s, %v", c.Exit, got, ok)
		}
	}
	for code := -1; code < 256; code++ {
		class, ok := FromCode(code)
		if ok && class.Code() != code {
			t.Errorf("FromCode(%d) = %s, whose code is %d", code, class, class.Code())
		}
		if !ok && class != ExitLost {
			t.Errorf("FromCode(%d) = %s, false; want lost", code, class)
		}
	}
}

// The codes are an interface: scripts and site epilogs read them.
func TestExitClass_CodesNeverChange(t *testing.T) {
	want := map[ExitClass]int{
		ExitMeasured: 0, ExitDriftArtefact: 10, ExitDriftNode: 11, ExitStaging: 12, ExitEngineStart: 13,
		ExitEngineDied: 14, ExitInvalid: 15, ExitCancelled: 16, ExitSpec: 17, ExitInternal: 70, ExitLost: -1,
	}
	got := map[ExitClass]int{}
	for _, c := range Classes() {
		got[c.Exit] = c.Exit.Code()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	unknown := ExitClass("nonsense")
	if unknown.Known() || unknown.Code() != -1 || unknown.Retry() != RetryDeterministic {
		t.Errorf("unknown class: %v %d %s", unknown.Known(), unknown.Code(), unknown.Retry())
	}
}

func TestTransitions_TableIsSound(t *testing.T) {
	known := map[Entity][]string{}
	for _, s := range RunStates() {
		known[EntityRun] = append(known[EntityRun], string(s))
	}
	for _, s := range BatchStates() {
		known[EntityBatch] = append(known[EntityBatch], string(s))
	}
	for _, s := range TaskStates() {
		known[EntityTask] = append(known[EntityTask], string(s))
	}
	type key struct {
		e        Entity
		from, to string
	}
	seen, reached := map[key]bool{}, map[key]bool{}
	for _, tr := range Transitions() {
		k := key{tr.Entity, tr.From, tr.To}
		if seen[k] {
			t.Errorf("%v is listed twice", k)
		}
		seen[k] = true
		reached[key{tr.Entity, "", tr.To}] = true
		if tr.From == tr.To || len(tr.By) == 0 {
			t.Errorf("%v: from equals to, or nobody may write it", k)
		}
		if tr.From != "" && !slices.Contains(known[tr.Entity], tr.From) || !slices.Contains(known[tr.Entity], tr.To) {
			t.Errorf("%v: unknown state", k)
		}
	}
	for e, states := range known {
		for _, s := range states {
			if !reached[key{e, "", s}] {
				t.Errorf("%s %s is never reached", e, s)
			}
		}
	}
}

func TestTransitions_Rules(t *testing.T) {
	for _, to := range RunStates() {
		if CanTransition(RunComplete, to) || CanTransition(RunSkipped, to) {
			t.Errorf("complete and skipped are final, yet may go to %s", to)
		}
	}
	for _, from := range RunStates() {
		if CanTransition(from, from) {
			t.Errorf("%s is its own successor", from)
		}
		for _, by := range []Actor{ActorAdmit, ActorSubmit, ActorTrack} {
			if MayTransition(by, from, RunComplete) {
				t.Errorf("%s may complete a run from %s: only a sealed manifest can", by, from)
			}
		}
		if from.Terminal() && from.Active() {
			t.Errorf("%s is terminal and active", from)
		}
	}
	if CanTransition(RunPending, RunRunning) || CanTransition(RunCancelled, RunRunning) {
		t.Error("a run starts without having been submitted")
	}
	if !CanTransitionBatch(BatchIntent, BatchHeld) || CanTransitionBatch(BatchIntent, BatchReleased) {
		t.Error("a batch is released only once its id is recorded")
	}
	if CanTransitionTask(TaskEnded, TaskWaiting) {
		t.Error("an ended task waits again")
	}
}

func TestJudge(t *testing.T) {
	measured := Attempt{Class: ExitMeasured, Valid: true}
	lost := Attempt{Class: ExitLost, Reason: "nothing was sealed"}
	tests := []struct {
		name      string
		attempts  []Attempt
		cancelled bool
		want      Verdict
	}{
		{"nothing tried", nil, false, Verdict{State: RunPending}},
		{"measured", []Attempt{measured}, false, Verdict{State: RunComplete}},
		{
			"measured late, after the budget was spent",
			[]Attempt{lost, lost, lost, measured},
			false,
			Verdict{State: RunComplete, Charged: 3},
		},
		{"measured beside a cancel", []Attempt{measured}, true, Verdict{State: RunComplete}},
		{
			"artefact drift is dead at once and blames no node",
			[]Attempt{{Class: ExitDriftArtefact, Node: "gpu1", Reason: "ENV_DRIFT: image"}},
			false,
			Verdict{State: RunDead, Reason: "ENV_DRIFT: image", Charged: 1},
		},
		{
			"node drift is retried elsewhere",
			[]Attempt{{Class: ExitDriftNode, Node: "gpu2", Reason: "ENV_DRIFT: driver"}, {Class: ExitDriftNode, Node: "gpu1", Reason: "ENV_DRIFT: driver"}},
			false,
			Verdict{State: RunPending, Reason: "ENV_DRIFT: driver", Charged: 2, Avoid: []string{"gpu1", "gpu2"}},
		},
		{"lost is retried", []Attempt{lost}, false, Verdict{State: RunPending, Reason: "nothing was sealed", Charged: 1}},
		{
			"lost until the budget is spent",
			[]Attempt{lost, lost, lost},
			false,
			Verdict{State: RunFailed, Reason: "nothing was sealed (attempt 3 of 3)", Charged: 3},
		},
		{
			"invalid is a fault of the harness and is retried",
			[]Attempt{{Class: ExitInvalid}},
			false,
			Verdict{State: RunPending, Reason: ExitInvalid.Meaning(), Charged: 1},
		},
		{
			"measured but marked invalid does not complete",
			[]Attempt{{Class: ExitMeasured}},
			false,
			Verdict{State: RunPending, Reason: "measured", Charged: 1},
		},
		{
			"one deterministic failure is retried",
			[]Attempt{{Class: ExitEngineDied, Signature: "a", Reason: "out of memory"}},
			false,
			Verdict{State: RunPending, Reason: "out of memory", Charged: 1},
		},
		{
			"the same signature twice is dead",
			[]Attempt{{Class: ExitEngineDied, Signature: "a", Reason: "out of memory"}, lost, {Class: ExitEngineStart, Signature: "a", Reason: "out of memory"}},
			false,
			Verdict{State: RunDead, Reason: "the same failure twice: out of memory", Charged: 3},
		},
		{
			"two different signatures are not",
			[]Attempt{{Class: ExitEngineDied, Signature: "a"}, {Class: ExitEngineDied, Signature: "b"}},
			false,
			Verdict{State: RunPending, Reason: ExitEngineDied.Meaning(), Charged: 2},
		},
		{
			"preemption is free", slices.Repeat([]Attempt{{Class: ExitCancelled, Cause: CausePreempted}}, 10), false,
			Verdict{State: RunPending, Reason: ExitCancelled.Meaning()},
		},
		{
			"but not for ever", slices.Repeat([]Attempt{{Class: ExitCancelled, Cause: CausePreempted}}, 13), false,
			Verdict{State: RunFailed, Reason: ExitCancelled.Meaning() + " (attempt 3 of 3)", Charged: 3},
		},
		{
			"the time limit is charged",
			[]Attempt{{Class: ExitCancelled, Cause: CauseTimeLimit}},
			false,
			Verdict{State: RunPending, Reason: ExitCancelled.Meaning(), Charged: 1},
		},
		{
			"scancel by somebody is respected",
			[]Attempt{{Class: ExitCancelled, Cause: CauseUser}},
			false,
			Verdict{State: RunCancelled, Reason: "cancelled in Slurm", Charged: 1},
		},
		{
			"cancelled by sbench",
			[]Attempt{{Class: ExitCancelled, Cause: CauseUser}},
			true,
			Verdict{State: RunCancelled, Reason: "cancelled", Charged: 1},
		},
		{
			"what lies before a release is forgiven",
			[]Attempt{{Class: ExitDriftArtefact, Forgiven: true}, {Class: ExitEngineDied, Signature: "a", Forgiven: true}, {Class: ExitEngineDied, Signature: "a", Reason: "x"}},
			false,
			Verdict{State: RunPending, Reason: "x", Charged: 1},
		},
		{
			"an unknown class cannot loop", slices.Repeat([]Attempt{{Class: "nonsense", Signature: "s"}}, 2), false,
			Verdict{State: RunDead, Reason: "the same failure twice: unknown exit class nonsense", Charged: 2},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Judge(tt.attempts, DefaultBudget(), tt.cancelled)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func drawAttempt(t *rapid.T) Attempt {
	classes := Classes()
	return Attempt{
		Class:     classes[rapid.IntRange(0, len(classes)-1).Draw(t, "class")].Exit,
		Signature: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "signature"),
		Valid:     rapid.Bool().Draw(t, "valid"),
		Cause:     rapid.SampledFrom([]Cause{CauseNone, CauseUser, CausePreempted, CauseNode, CauseTimeLimit}).Draw(t, "cause"),
		Node:      rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "node"),
		Forgiven:  rapid.Bool().Draw(t, "forgiven"),
	}
}

// Observations arrive in any order; the end is the same.
func TestJudge_OrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		attempts := rapid.SliceOfN(rapid.Custom(drawAttempt), 0, 12).Draw(t, "attempts")
		budget := Budget{Attempts: rapid.IntRange(1, 4).Draw(t, "budget"), Free: rapid.IntRange(0, 3).Draw(t, "free")}
		cancelled := rapid.Bool().Draw(t, "cancelled")
		want := Judge(attempts, budget, cancelled)
		got := Judge(rapid.Permutation(attempts).Draw(t, "permuted"), budget, cancelled)
		want.Reason, got.Reason = "", "" // which of two equal headlines is shown is free
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// Whatever fails, a run is tried a bounded number of times.
func TestJudge_Ends(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budget := Budget{Attempts: rapid.IntRange(1, 5).Draw(t, "budget"), Free: rapid.IntRange(0, 5).Draw(t, "free")}
		var attempts []Attempt
		for Judge(attempts, budget, false).State == RunPending {
			a := drawAttempt(t)
			a.Forgiven = false
			attempts = append(attempts, a)
		}
		if most := budget.Attempts + budget.Free; len(attempts) > most {
			t.Fatalf("%d attempts, at most %d are allowed", len(attempts), most)
		}
	})
}

// Every verdict can be written from every state a run can be judged in.
func TestJudge_VerdictsAreLegal(t *testing.T) {
	for _, from := range []RunState{RunSubmitted, RunProvisioning, RunRunning} {
		for _, to := range []RunState{RunPending, RunDead, RunFailed, RunCancelled} {
			for _, by := range []Actor{ActorTrack, ActorCollect} {
				if !MayTransition(by, from, to) {
					t.Errorf("%s may not write %s → %s", by, from, to)
				}
			}
		}
	}
	for _, from := range RunStates() {
		if from != RunComplete && from != RunSkipped && !MayTransition(ActorCollect, from, RunComplete) {
			t.Errorf("a measured attempt cannot complete a run that is %s", from)
		}
	}
}
