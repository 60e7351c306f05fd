package daemon

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/api"
	"sbench/internal/pgtest"
)

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// siteFile is a site whose Slurm does not exist.
func siteFile(t *testing.T, dir, name string) string {
	t.Helper()
	return write(t, filepath.Join(dir, name+".yaml"), fmt.Sprintf(`site: v1
name: %[2]s
cluster: c1
hardware_class: emulated
slurm: {bin: %[1]s/no-slurm}
hardware:
  l4: {gres: "gpu:l4", gpus_per_node: 4}
paths: {spool: %[1]s/spool, results: %[1]s/results, models: %[1]s/models, images: %[1]s/images, cache: %[1]s/cache}
`, dir, name))
}

func configFile(t *testing.T, dir, name, dsn string, more ...string) string {
	t.Helper()
	write(t, filepath.Join(dir, "sbench-runner"), "#!/bin/sh\n")
	return write(t, filepath.Join(dir, name+".conf"), fmt.Sprintf("socket: %s.sock\ndsn: %q\nsites: [lab.yaml]\nrunner: sbench-runner\n%s", name, dsn, strings.Join(more, "\n")))
}

func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	siteFile(t, dir, "lab")
	c, err := Load(configFile(t, dir, "a", "host=/x dbname=y", "operators: [ada]", "log_format: json"))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Socket: filepath.Join(dir, "a.sock"), DSN: "host=/x dbname=y", Sites: []string{filepath.Join(dir, "lab.yaml")},
		Runner: filepath.Join(dir, "sbench-runner"), Operators: []string{"ada"}, Admins: []string{},
		LogLevel: "info", LogFormat: "json", Mail: Mail{Program: "/usr/sbin/sendmail"},
	}
	c.GPUHelper, c.TimeZone = "", ""
	if diff := cmp.Diff(want, c); diff != "" {
		t.Error(diff)
	}
}

func TestLoad_Faults(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	runner := write(t, filepath.Join(dir, "sbench-runner"), "#!/bin/sh\n")
	for name, tc := range map[string]struct{ text, want string }{
		"unknown key":    {"dns: x", `unknown-key.conf:1:1: unknown key "dns"`},
		"repeated key":   {"dsn: x\ndsn: y", "dsn"},
		"two documents":  {"dsn: host=/x\n---\ndsn: y", "document"},
		"empty":          {"log_level: info", "dsn is missing\nsites is empty"},
		"wrong type":     {"sites: 7", "wrong-type.conf:1:8: sites is"},
		"bad level":      {"dsn: host=/x\nsites: [a]\nlog_level: loud\nrunner: " + runner, "log_level"},
		"bad zone":       {"dsn: host=/x\nsites: [a]\ntime_zone: Mars/Olympus\nrunner: " + runner, "not an IANA name"},
		"two ways":       {"dsn: host=/x\nsites: [a]\nmail: {smtp: 'mail:25', program: /bin/mail, from: a@b}\nrunner: " + runner, "mail.program and mail.smtp exclude each other"},
		"no sender":      {"dsn: host=/x\nsites: [a]\nmail: {smtp: 'mail:25'}\nrunner: " + runner, "mail.smtp needs mail.from"},
		"no password":    {"dsn: host=/x\nsites: [a]\nmail: {smtp: 'mail:25', from: a@b, user: a}\nrunner: " + runner, "belong together"},
		"no relay":       {"dsn: host=/x\nsites: [a]\nmail: {user: a, password_file: b}\nrunner: " + runner, "name it in mail.smtp"},
		"bad sender":     {"dsn: host=/x\nsites: [a]\nmail: {from: '-oQ/tmp'}\nrunner: " + runner, "no plain address"},
		"bad format":     {"dsn: host=/x\nsites: [a]\nlog_format: xml\nrunner: " + runner, "log_format"},
		"no runner":      {"dsn: host=/x\nsites: [a]\nrunner: nowhere", "nowhere is no file"},
		"long socket":    {"dsn: host=/x\nsites: [a]\nsocket: /" + strings.Repeat("s", 120) + "\nrunner: " + runner, "longer than the 107 bytes"},
		"password leaks": {"dsn: 'postgres://u:sesame@h:x/d'\nsites: [a]\nrunner: " + runner, "dsn is no address"},
	} {
		_, err := Load(write(t, filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".conf"), tc.text))
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
}

func TestRedacted(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{"postgres://u:sesame@h/d", "host=h user=u password=sesame dbname=d", "://sesame"} {
		text, err := Config{DSN: dsn}.Redacted()
		if err != nil || strings.Contains(text, "sesame") {
			t.Errorf("%s: %s, %v", dsn, text, err)
		}
	}
}

func TestMain_Usage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	siteFile(t, dir, "lab")
	good := configFile(t, dir, "good", "postgres://u:sesame@h/d")
	write(t, filepath.Join(dir, "broken.yaml"), "site: v1\nhardwere: x\n")
	broken := configFile(t, dir, "broken", "host=/x", "")
	text, err := os.ReadFile(broken)
	if err != nil {
		t.Fatal(err)
	}
	write(t, broken, strings.Replace(string(text), "lab.yaml", "broken.yaml", 1))
	twice := configFile(t, dir, "twice", "host=/x")
	write(t, twice, strings.Replace(string(text), "lab.yaml", "lab.yaml, lab.yaml", 1))
	for name, tc := range map[string]struct {
		args           []string
		status         int
		stdout, stderr string
	}{
		"help":     {[]string{"--help"}, 0, "usage: sbenchd", ""},
		"version":  {[]string{"--version"}, 0, "sbenchd ", ""},
		"no flag":  {nil, 2, "", "missing flag: --config"},
		"bad flag": {[]string{"--conf=x"}, 2, "", "flag provided but not defined"},
		"argument": {[]string{"start"}, 2, "", `unexpected argument "start"`},
		"no file":  {[]string{"--config", "/nowhere"}, 2, "", "no such file"},
		"print":    {[]string{"--config", good, "--print-config"}, 0, "password=(hidden)", ""},
		"site":     {[]string{"--config", broken}, 2, "", `broken.yaml:2:1: unknown key "hardwere"`},
		"twice":    {[]string{"--config", twice}, 2, "", "are both the site lab"},
	} {
		var stdout, stderr bytes.Buffer
		status := Main(t.Context(), tc.args, &stdout, &stderr)
		if status != tc.status || !strings.Contains(stdout.String(), tc.stdout) || !strings.Contains(stderr.String(), tc.stderr) {
			t.Errorf("%s: status %d\n%s%s", name, status, stdout.String(), stderr.String())
		}
		if strings.Contains(stdout.String(), "sesame") {
			t.Errorf("%s: the password is shown", name)
		}
	}
}

// lockedBuffer is a log that a test reads while the daemon writes.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// running is a daemon in this process.
type running struct {
	socket string
	log    *lockedBuffer
	stop   context.CancelFunc
	done   chan int
}

func start(t *testing.T, config, socket string) *running {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r := &running{socket: socket, log: &lockedBuffer{}, stop: stop, done: make(chan int, 1)}
	go func() { r.done <- Main(ctx, []string{"--config", config}, r.log, r.log) }()
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Log(r.log.String())
		}
	})
	return r
}

// await polls until ok, or fails the test.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func (r *running) says(text string) func() bool {
	return func() bool { return strings.Contains(r.log.String(), text) }
}

func TestMain_ServesElectsAndDrains(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	siteFile(t, dir, "lab")
	dsn := pgtest.EmptyDSN(t)
	first := start(t, configFile(t, dir, "a", dsn), filepath.Join(dir, "a.sock"))
	await(t, "the first daemon acts", first.says("this daemon acts"))
	v, err := api.NewClient(first.socket).Version(t.Context())
	if err != nil || v.User == "" {
		t.Fatalf("got %+v, %v", v, err)
	}
	sites, err := api.NewClient(first.socket).Sites(t.Context())
	if err != nil || len(sites) != 1 || sites[0].Name != "lab" {
		t.Errorf("got %+v, %v", sites, err)
	}
	info, err := os.Stat(first.socket)
	if err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("socket: %v, %v", info, err)
	}

	// The same socket is taken; another daemon on the same database waits.
	var stderr bytes.Buffer
	if status := Main(t.Context(), []string{"--config", filepath.Join(dir, "a.conf")}, &stderr, &stderr); status != exitFailed || !strings.Contains(stderr.String(), "another daemon serves") {
		t.Errorf("status %d: %s", status, stderr.String())
	}
	second := start(t, configFile(t, dir, "b", dsn), filepath.Join(dir, "b.sock"))
	await(t, "the second daemon is ready", second.says("msg=ready"))
	if _, err := api.NewClient(second.socket).Sites(t.Context()); err != nil {
		t.Error(err)
	}
	if second.says("this daemon acts")() {
		t.Error("two daemons act")
	}

	first.stop()
	if status := <-first.done; status != exitOK {
		t.Errorf("first ended with %d", status)
	}
	if _, err := os.Stat(first.socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
	if _, err := os.Stat(first.socket + ".lock"); !os.IsNotExist(err) {
		t.Errorf("the lock is left: %v", err)
	}
	await(t, "the second daemon acts", second.says("this daemon acts"))
	second.stop()
	if status := <-second.done; status != exitOK {
		t.Errorf("second ended with %d", status)
	}
}

// TestMain_ReloadsSiteFiles is not parallel: the signal reaches every daemon of
// this process.
func TestMain_ReloadsSiteFiles(t *testing.T) {
	dir := t.TempDir()
	path := siteFile(t, dir, "lab")
	r := start(t, configFile(t, dir, "a", pgtest.EmptyDSN(t)), filepath.Join(dir, "a.sock"))
	await(t, "the daemon acts", r.says("this daemon acts"))
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	hangup := func() {
		t.Helper()
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	ready := func() string {
		t.Helper()
		c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", r.socket)
		}}}
		resp, err := c.Get("http://sbench/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	class := func() string {
		t.Helper()
		sites, err := api.NewClient(r.socket).Sites(t.Context())
		if err != nil || len(sites) != 1 {
			t.Fatalf("got %+v, %v", sites, err)
		}
		return sites[0].HardwareClass
	}
	if got := ready(); got != "ready\n" {
		t.Errorf("ready says %q", got)
	}

	write(t, path, string(text)+"hardwere: x\n")
	hangup()
	line := strings.Count(string(text), "\n") + 1
	await(t, "the fault is logged with its line", r.says(fmt.Sprintf(`lab.yaml:%d:1: unknown key \"hardwere\"`, line)))
	await(t, "ready says that it was refused", func() bool { return strings.Contains(ready(), "a reload was refused at") })
	write(t, path, strings.Replace(string(text), "name: lab", "name: moon", 1))
	hangup()
	await(t, "a site that is gone is refused", r.says("site lab is gone"))
	if got := class(); got != "emulated" {
		t.Errorf("the sites in force are not the old ones: %s", got)
	}

	write(t, path, strings.Replace(string(text), "emulated", "real", 1))
	hangup()
	await(t, "the new file is in force", func() bool { return class() == "real" })
	await(t, "ready says so", func() bool { return strings.Contains(ready(), "site files: reloaded at") })
	await(t, "the services begin again", func() bool { return strings.Count(r.log.String(), `msg="this daemon acts"`) == 2 })
	r.stop()
	if status := <-r.done; status != exitOK {
		t.Errorf("ended with %d", status)
	}
}

func TestMain_WaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	siteFile(t, dir, "lab")
	r := start(t, configFile(t, dir, "a", "host="+dir+" dbname=x"), "")
	await(t, "it says why it waits", r.says("database does not answer"))
	r.stop()
	if status := <-r.done; status != exitOK {
		t.Errorf("ended with %d", status)
	}
}

func TestListen_StaleSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "run", "s.sock")
	l, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	// As kill -9 leaves it: the file is there, nobody holds the lock.
	locked := l.(*lockedListener)
	if err := locked.lock.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	write(t, path, "no socket")
	if _, err := listen(path); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file in the way: %v", err)
	}
}
