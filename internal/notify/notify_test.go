package notify_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"sbench/internal/mail"
	"sbench/internal/notify"
	"sbench/internal/pgtest"
	"sbench/internal/setting"
	"sbench/internal/store"
)

// post is a database with sweeps in it, and a mail program that keeps what it is
// given.
type post struct {
	*testing.T
	store *store.Store
	conn  *pgx.Conn
	now   time.Time
	box   string // folder of the messages
	path  string // of the program
}

func newPost(t *testing.T) *post {
	t.Helper()
	dsn := pgtest.DSN(t)
	s, err := store.Open(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	p := &post{T: t, conn: conn, now: time.Now(), box: filepath.Join(t.TempDir(), "box")}
	p.store = s.WithClock(func() time.Time { return p.now })
	if err := os.Mkdir(p.box, 0o755); err != nil {
		t.Fatal(err)
	}
	p.program(fmt.Sprintf(`cat >"$(mktemp %s/XXXXXX)"`, p.box))
	return p
}

func (p *post) program(script string) {
	p.Helper()
	p.path = filepath.Join(p.TempDir(), "sendmail")
	if err := os.WriteFile(p.path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		p.Fatal(err)
	}
}

func (p *post) execute(sql string, args ...any) {
	p.Helper()
	if _, err := p.conn.Exec(p.Context(), sql, args...); err != nil {
		p.Fatal(err)
	}
}

// sweep stores a sweep of two runs.
func (p *post) sweep(dependency string, types ...string) int64 {
	p.Helper()
	sum := sha256.Sum256([]byte("{}"))
	hash := hex.EncodeToString(sum[:])
	id, _, err := p.store.CreateSweep(p.Context(), store.NewSweep{
		Name: "nightly", UserName: "ada", UID: 1000, Site: "lab", HardwareClass: "emulated", File: "sweep: v1\n", MailTypes: types, Dependency: dependency,
		Settings: []store.NewSetting{{Hash: hash, SeriesHash: hash, CanonicalSpec: []byte("{}"), Setting: setting.Setting{}, Repeats: 2}},
	})
	if err != nil {
		p.Fatal(err)
	}
	return id
}

// begin starts the runs of a sweep, and end ends it, as the services do.
func (p *post) begin(sweep int64) {
	p.Helper()
	token := fmt.Sprintf("sb-%020d", sweep)
	token = strings.NewReplacer("0", "a", "1", "b", "8", "c", "9", "d").Replace(token)
	p.execute(`
insert into batch (token, site, cluster, uid, user_name, dir, attempts_dir, digest, time_limit_s, n_tasks, created_at, state, actor, changed_at)
values ($1, 'lab', 'c1', 1000, 'ada', '/spool/' || $1, '/results', 'sha256:00', 60, 1, now(), 'intent', 'submit', now()) on conflict do nothing`, token)
	p.execute(`insert into task (token, task_index, time_limit_s, state, actor, changed_at) values ($1, 0, 60, 'waiting', 'submit', now()) on conflict do nothing`, token)
	p.execute(`update run set state = 'submitted', actor = 'submit', batch_token = $2, task_index = 0, task_position = 0, changed_at = now() where sweep_id = $1`, sweep, token)
	for _, state := range []string{"provisioning", "running"} {
		p.execute(`update run set state = $2, actor = 'track', changed_at = now() where sweep_id = $1`, sweep, state)
	}
}

func (p *post) end(sweep int64, run, state string) {
	p.Helper()
	p.execute(`update run set state = $2, actor = 'collect', reason = E'engine\a said no', changed_at = now() where sweep_id = $1`, sweep, run)
	p.execute(`update sweep_setting set settled = true where sweep_id = $1`, sweep)
	p.execute(`update sweep set state = $2, ended_at = now(), changed_at = now() where id = $1`, sweep, state)
}

// deliver runs the service until the outbox is empty, or until it fails.
func (p *post) deliver(failpoint func(string)) {
	p.Helper()
	ctx, cancel := context.WithCancel(p.Context())
	defer cancel()
	s := notify.New(notify.Config{
		Store: p.store, Send: mail.Program{Path: p.path}.Send, From: "sbench@example.org", Domain: "example.org", Now: func() time.Time { return p.now },
		Interval: 10 * time.Millisecond, Failpoint: failpoint,
	})
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	deadline := time.Now().Add(30 * time.Second)
	for {
		var open int
		if err := p.conn.QueryRow(p.Context(), `select count(*) from mail where state = 'sending' or state = 'waiting' and next_try_at is null`).Scan(&open); err != nil {
			p.Fatal(err)
		}
		select {
		case <-done:
			return
		default:
		}
		if open == 0 {
			break
		}
		if time.Now().After(deadline) {
			p.Fatal("the outbox does not become empty")
		}
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		p.Errorf("the service ended with %v", err)
	}
}

// received are the subjects of what was sent.
func (p *post) received() []string {
	p.Helper()
	files, err := filepath.Glob(p.box + "/*")
	if err != nil {
		p.Fatal(err)
	}
	subjects := []string{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			p.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "\nSubject: ")
		subject, _, _ := strings.Cut(rest, "\n")
		subjects = append(subjects, subject)
	}
	slices.Sort(subjects)
	return subjects
}

func (p *post) states(sweep int64) []string {
	p.Helper()
	mails, err := p.store.MailsOfSweep(p.Context(), sweep)
	if err != nil {
		p.Fatal(err)
	}
	list := []string{}
	for _, m := range mails {
		list = append(list, fmt.Sprintf("%s %s %d", m.Event, m.State, m.Tries))
	}
	return list
}

func TestMail_OncePerEvent(t *testing.T) {
	t.Parallel()
	p := newPost(t)
	all := []string{"BEGIN", "END", "FAIL", "REQUEUE", "INVALID_DEPEND"}
	quiet, loud, only := p.sweep(""), p.sweep("", all...), p.sweep("", "FAIL")
	hopeless := p.sweep("afterok:1", all...)
	for _, id := range []int64{quiet, loud, only} {
		p.begin(id)
	}
	p.deliver(nil)
	p.end(quiet, "complete", "complete")
	p.end(only, "complete", "complete")
	p.end(loud, "dead", "incomplete")
	if err := p.store.SetDependency(t.Context(), hopeless, store.DependencyNever, "sweep 1 is incomplete"); err != nil {
		t.Fatal(err)
	}
	p.deliver(nil)
	if _, err := p.store.Requeue(t.Context(), store.Scope{Sweeps: []int64{loud}}, "ada", ""); err != nil {
		t.Fatal(err)
	}
	p.begin(loud)
	p.end(loud, "complete", "complete")
	p.deliver(nil)
	p.deliver(nil) // a daemon that starts again has nothing to say
	want := []string{
		"sbench: sweep 2 (nightly) goes on: runs were requeued", "sbench: sweep 2 (nightly) has begun", "sbench: sweep 2 (nightly) is complete",
		"sbench: sweep 2 (nightly) is incomplete: 0 of 1 settings are complete",
		"sbench: sweep 4 (nightly) is cancelled: its dependency can never be satisfied",
	}
	if diff := cmp.Diff(want, p.received()); diff != "" {
		t.Errorf("received (-want +got):\n%s", diff)
	}
	files, _ := filepath.Glob(p.box + "/*")
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(text); !strings.Contains(got, "To: ada@example.org\n") || strings.ContainsRune(got, '\a') {
			t.Errorf("got %q", got)
		}
	}
}

// Nobody saw a short run running: its attempt says that the sweep has begun.
func TestMail_ShortRun(t *testing.T) {
	t.Parallel()
	p := newPost(t)
	id := p.sweep("", "BEGIN")
	for range 2 {
		p.execute(`
insert into attempt (run_id, cluster, job_id_raw, restart_count, sealed, token, task_index, site, nodes, hardware_class, exit_class, valid,
                     env_verified, reasons, recorded_at)
select id, 'c1', id + (select count(*) from attempt), 0, true, 'sb-aaaaaaaaaaaaaaaaaaaa', 0, 'lab', '{}', 'emulated', 'measured', true, true, '{}', now()
  from run where sweep_id = $1`, id)
	}
	if diff := cmp.Diff([]string{"BEGIN waiting 0"}, p.states(id)); diff != "" {
		t.Error(diff)
	}
}

// The runs of several sweeps begin in one statement: each that asked for it is told
// once, and no other.
func TestMail_SeveralSweepsAtOnce(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{
		"attempts": `
insert into attempt (run_id, cluster, job_id_raw, restart_count, sealed, token, task_index, site, nodes, hardware_class, exit_class, valid,
                     env_verified, reasons, recorded_at)
select id, 'c1', id, 0, true, 'sb-aaaaaaaaaaaaaaaaaaaa', 0, 'lab', '{}', 'emulated', 'measured', true, true, '{}', now()
  from run where sweep_id = any($1) order by id desc`,
		"runs": `update run set state = 'provisioning', actor = 'track', changed_at = now() where sweep_id = any($1)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPost(t)
			ids := []int64{p.sweep("", "BEGIN"), p.sweep(""), p.sweep("", "BEGIN", "END")}
			token := "sb-aaaaaaaaaaaaaaaaaaaa"
			p.execute(`
insert into batch (token, site, cluster, uid, user_name, dir, attempts_dir, digest, time_limit_s, n_tasks, created_at, state, actor, changed_at)
values ($1, 'lab', 'c1', 1000, 'ada', '/spool/' || $1, '/results', 'sha256:00', 60, 1, now(), 'intent', 'submit', now())`, token)
			p.execute(`insert into task (token, task_index, time_limit_s, state, actor, changed_at) values ($1, 0, 60, 'waiting', 'submit', now())`, token)
			p.execute(`
update run set state = 'submitted', actor = 'submit', batch_token = $2, task_index = 0, task_position = 0, changed_at = now()
 where sweep_id = any($1)`, ids, token)
			p.execute(statement, ids)
			for i, want := range [][]string{{"BEGIN waiting 0"}, {}, {"BEGIN waiting 0"}} {
				if diff := cmp.Diff(want, p.states(ids[i])); diff != "" {
					t.Errorf("sweep %d (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

// A manifest that comes late re-opens an ended sweep, and its settings are summed
// up again: nobody is told twice.
func TestMail_LateManifest(t *testing.T) {
	t.Parallel()
	p := newPost(t)
	id := p.sweep("", "END", "REQUEUE")
	p.begin(id)
	p.end(id, "complete", "complete")
	p.execute(`update sweep set state = 'active', ended_at = null where id = $1`, id)
	p.execute(`update sweep set state = 'complete', ended_at = now() where id = $1`, id)
	if diff := cmp.Diff([]string{"END waiting 0"}, p.states(id)); diff != "" {
		t.Error(diff)
	}
}

func TestMail_KilledDaemon(t *testing.T) {
	t.Parallel()
	for _, point := range []string{notify.FailClaimed, notify.FailSent} {
		p := newPost(t)
		id := p.sweep("", "BEGIN")
		p.begin(id)
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			s := notify.New(notify.Config{Store: p.store, Send: mail.Program{Path: p.path}.Send, Failpoint: func(name string) {
				if name == point {
					killed <- struct{}{}
					select {} // as if the process were gone
				}
			}})
			_ = s.Run(p.Context())
		}()
		<-killed
		p.deliver(nil)
		sent := map[string]int{notify.FailClaimed: 0, notify.FailSent: 1}[point]
		if got := len(p.received()); got != sent {
			t.Errorf("killed at %s: %d mails, want %d", point, got, sent)
		}
		if diff := cmp.Diff([]string{"BEGIN unknown 1"}, p.states(id)); diff != "" {
			t.Errorf("killed at %s: %s", point, diff)
		}
	}
}

// TestMail_NotRecorded: where the database did not take what became of a mail, the
// same daemon says so in its next turn.
func TestMail_NotRecorded(t *testing.T) {
	t.Parallel()
	p := newPost(t)
	id := p.sweep("", "BEGIN")
	p.begin(id)
	other, err := pgx.ConnectConfig(p.Context(), p.conn.Config())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	p.deliver(func(name string) {
		if name != notify.FailSent {
			return
		}
		// Another mail's outcome is lost, after the look that the turn began with.
		_, err := other.Exec(p.Context(), `
insert into mail (sweep_id, event, occurrence, sweep_state, state, tries, at, changed_at) values ($1, 'END', 1, 'complete', 'sending', 1, now(), now())`, id)
		if err != nil {
			t.Error(err)
		}
	})
	if diff := cmp.Diff([]string{"BEGIN sent 1", "END unknown 1"}, p.states(id)); diff != "" || len(p.received()) != 1 {
		t.Error(diff, p.received())
	}
}

func TestMail_TriesAgain(t *testing.T) {
	t.Parallel()
	p := newPost(t)
	id := p.sweep("", "BEGIN")
	p.begin(id)
	good := p.path
	p.program("echo try later >&2; exit 75")
	for try := 1; try <= 5; try++ {
		p.now = p.now.Add(5 * time.Hour)
		p.execute(`update mail set next_try_at = null where state = 'waiting'`)
		p.deliver(nil)
		if diff := cmp.Diff([]string{fmt.Sprintf("BEGIN waiting %d", try)}, p.states(id)); diff != "" {
			t.Fatal(diff)
		}
	}
	p.path = good
	p.deliver(nil)
	if got := p.received(); len(got) != 0 {
		t.Errorf("sent before its time: %q", got)
	}
	p.now = p.now.Add(5 * time.Hour)
	p.execute(`update mail set next_try_at = null where state = 'waiting'`)
	p.deliver(nil)
	if diff := cmp.Diff([]string{"BEGIN sent 6"}, p.states(id)); diff != "" || len(p.received()) != 1 {
		t.Error(diff, p.received())
	}
}
