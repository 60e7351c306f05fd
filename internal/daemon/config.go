package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.yaml.in/yaml/v3"

	"sbench/internal/api"
	"sbench/internal/diag"
	"sbench/internal/strictyaml"
)

// Config is the daemon's configuration file. Every key may be left out but dsn
// and sites.
type Config struct {
	// Socket is the Unix socket of the API. Everybody may connect; the kernel says
	// who it is.
	Socket string `yaml:"socket"`
	// DSN is PostgreSQL's address: a URL, or "host=… dbname=…". A password belongs
	// into a .pgpass file or PGPASSFILE.
	DSN string `yaml:"dsn"`
	// Sites are the paths of the site files.
	Sites []string `yaml:"sites"`
	// Runner and GPUHelper are the programs that are copied into the spool.
	Runner    string `yaml:"runner"`
	GPUHelper string `yaml:"gpu_helper"`
	// Operators may act on everybody's sweeps and on sites, as root and the
	// daemon's own user may.
	Operators []string `yaml:"operators"`
	// TimeZone is of the schedules that name none: an IANA name; the machine's
	// where it is known, else UTC.
	TimeZone string `yaml:"time_zone"`
	// Admins are operators who also set rates and quotas and see the audit log.
	Admins []string `yaml:"admins"`
	// Listen is the TCP side of the API, for hosts other than the daemon's own.
	Listen Listen `yaml:"listen"`
	// Mail is how mail about sweeps is sent.
	Mail Mail `yaml:"mail"`
	// RequestsPerS is how many requests a caller may send for any length of time;
	// 0 is the daemon's own limit.
	RequestsPerS int    `yaml:"requests_per_s"`
	LogLevel     string `yaml:"log_level"`  // debug, info, warn, error
	LogFormat    string `yaml:"log_format"` // text, json
}

// Listen says how the API is offered over TCP. Callers show a MUNGE credential for
// each request, or a token.
type Listen struct {
	// Address is host:port; "" does not listen.
	Address string `yaml:"address"`
	// TLSCert and TLSKey are PEM files; both or none. Without them answers can be
	// read on the way, and tokens are taken from the daemon's own host only.
	TLSCert string `yaml:"tls_cert"`
	TLSKey  string `yaml:"tls_key"`
	// MungeSocket is munged's; "" is its default.
	MungeSocket string `yaml:"munge_socket"`
	// TrustRoot makes root of every host that has the MUNGE key an admin here, as
	// root of the daemon's own host is.
	TrustRoot bool `yaml:"trust_root"`
}

// Default returns the configuration of an empty file.
func Default() Config {
	c := Config{Socket: api.DefaultSocket, LogLevel: "info", LogFormat: "text", TimeZone: localZone(), Sites: []string{}, Operators: []string{}, Admins: []string{}}
	if self, err := os.Executable(); err == nil {
		// The programs are installed side by side.
		c.Runner = filepath.Join(filepath.Dir(self), "sbench-runner")
		if helper := filepath.Join(filepath.Dir(self), "sbench-gpu"); isFile(helper) {
			c.GPUHelper = helper
		}
	}
	return c
}

// localZone is the IANA name of the machine's time zone.
func localZone() string {
	const zones = "/zoneinfo/"
	for _, name := range []func() (string, error){
		func() (string, error) { return os.Getenv("TZ"), nil },
		func() (string, error) {
			target, err := filepath.EvalSymlinks("/etc/localtime")
			_, zone, _ := strings.Cut(target, zones)
			return zone, err
		},
	} {
		if zone, err := name(); err == nil && checkZone(zone) == nil {
			return zone
		}
	}
	return "UTC"
}

func checkZone(name string) error {
	if _, err := time.LoadLocation(name); err != nil || name == "" || name == "Local" {
		return fmt.Errorf("time_zone %q is not an IANA name, such as Europe/Berlin", name)
	}
	return nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// maxConfig is the size of the largest configuration file that is read.
const maxConfig = 1 << 20

// Load reads a configuration file strictly. The paths in it are relative to its
// folder.
func Load(path string) (Config, error) {
	c := Default()
	text, err := readFile(path, maxConfig)
	if err != nil {
		return c, fmt.Errorf("read configuration: %w", err)
	}
	faults := diag.NewCollector(path, text)
	if root := strictyaml.Parse(text, maxConfig, faults); root != nil {
		c.read(root, strictyaml.Reader{Faults: faults})
	}
	if list := faults.List(); list.HasErrors() {
		return c, errors.New("the configuration is wrong\n" + strings.TrimRight(list.Text(), "\n"))
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return c, fmt.Errorf("read configuration: %w", err)
	}
	if c.Mail.SMTP == "" && c.Mail.Program == "" {
		c.Mail.Program = defaultMailProgram
	}
	for _, p := range []*string{&c.Socket, &c.Runner, &c.GPUHelper, &c.Mail.Program, &c.Mail.PasswordFile, &c.Listen.TLSCert, &c.Listen.TLSKey, &c.Listen.MungeSocket} {
		*p = below(dir, *p)
	}
	for i := range c.Sites {
		c.Sites[i] = below(dir, c.Sites[i])
	}
	if err := c.check(); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// read takes the file's values over.
func (c *Config) read(root *strictyaml.Node, r strictyaml.Reader) {
	text := func(into *string) func(*strictyaml.Node, string) {
		return func(n *strictyaml.Node, p string) {
			if v, ok := r.Text(n, p); ok {
				*into = v
			}
		}
	}
	texts := func(into *[]string) func(*strictyaml.Node, string) {
		return func(n *strictyaml.Node, p string) {
			if v, ok := r.Texts(n, p); ok {
				*into = v
			}
		}
	}
	word := func(into *string, words ...string) func(*strictyaml.Node, string) {
		return func(n *strictyaml.Node, p string) {
			if v, ok := r.Word(n, p, words); ok {
				*into = v
			}
		}
	}
	r.Fields(root, "", []strictyaml.Field{
		{Key: "socket", Read: text(&c.Socket)},
		{Key: "dsn", Read: text(&c.DSN)},
		{Key: "sites", Read: texts(&c.Sites)},
		{Key: "runner", Read: text(&c.Runner)},
		{Key: "gpu_helper", Read: text(&c.GPUHelper)},
		{Key: "operators", Read: texts(&c.Operators)},
		{Key: "time_zone", Read: text(&c.TimeZone)},
		{Key: "admins", Read: texts(&c.Admins)},
		{Key: "listen", Read: func(n *strictyaml.Node, p string) {
			r.Fields(n, p, []strictyaml.Field{
				{Key: "address", Read: text(&c.Listen.Address)},
				{Key: "tls_cert", Read: text(&c.Listen.TLSCert)},
				{Key: "tls_key", Read: text(&c.Listen.TLSKey)},
				{Key: "munge_socket", Read: text(&c.Listen.MungeSocket)},
				{Key: "trust_root", Read: func(n *strictyaml.Node, p string) {
					if v, ok := r.Bool(n, p); ok {
						c.Listen.TrustRoot = v
					}
				}},
			})
		}},
		{Key: "mail", Read: func(n *strictyaml.Node, p string) {
			r.Fields(n, p, []strictyaml.Field{
				{Key: "program", Read: text(&c.Mail.Program)},
				{Key: "smtp", Read: text(&c.Mail.SMTP)},
				{Key: "user", Read: text(&c.Mail.User)},
				{Key: "password_file", Read: text(&c.Mail.PasswordFile)},
				{Key: "from", Read: text(&c.Mail.From)},
				{Key: "domain", Read: text(&c.Mail.Domain)},
			})
		}},
		{Key: "requests_per_s", Read: func(n *strictyaml.Node, p string) {
			if v, ok := r.Int(n, p); ok {
				c.RequestsPerS = int(v)
			}
		}},
		{Key: "log_level", Read: word(&c.LogLevel, logLevels()...)},
		{Key: "log_format", Read: word(&c.LogFormat, "text", "json")},
	})
}

func logLevels() []string { return []string{"debug", "info", "warn", "error"} }

// readFile reads a file of at most limit bytes, and one more byte of a larger one.
func readFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit+1))
}

func below(dir, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// check returns all faults at once.
func (c Config) check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.DSN == "" {
		fail("dsn is missing")
	} else if _, err := pgxpool.ParseConfig(c.DSN); err != nil {
		fail("dsn is no address of a PostgreSQL") // the error would show the password
	}
	if len(c.Sites) == 0 {
		fail("sites is empty: name at least one site file")
	}
	if len(c.Socket) > 107 {
		fail("socket %s is longer than the 107 bytes of a socket's path", c.Socket)
	}
	if err := checkZone(c.TimeZone); err != nil {
		fail("%v", err)
	}
	if c.RequestsPerS < 0 || c.RequestsPerS > 1_000_000 {
		fail("requests_per_s %d is not between 1 and 1000000", c.RequestsPerS)
	}
	if l := c.Listen; l.Address != "" {
		if _, _, err := net.SplitHostPort(l.Address); err != nil {
			fail("listen.address %q is not host:port", l.Address)
		}
		if (l.TLSCert == "") != (l.TLSKey == "") {
			fail("listen.tls_cert and listen.tls_key go together")
		}
	} else if l != (Listen{}) {
		fail("listen without listen.address")
	}
	errs = append(errs, c.Mail.check()...)
	if !isFile(c.Runner) {
		fail("runner %s is no file", c.Runner)
	}
	if c.GPUHelper != "" && !isFile(c.GPUHelper) {
		fail("gpu_helper %s is no file", c.GPUHelper)
	}
	return errors.Join(errs...)
}

// Redacted returns the effective configuration as YAML without passwords.
func (c Config) Redacted() (string, error) {
	if p, err := pgxpool.ParseConfig(c.DSN); err == nil {
		cc := p.ConnConfig
		c.DSN = fmt.Sprintf("host=%s port=%d user=%s dbname=%s", cc.Host, cc.Port, cc.User, cmp.Or(cc.Database, cc.User))
		if cc.Password != "" {
			c.DSN += " password=(hidden)"
		}
	} else {
		c.DSN = "(not readable)"
	}
	text, err := yaml.Marshal(c)
	return string(text), err
}

// logger writes to w as the configuration asks.
func (c Config) logger(w io.Writer) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(c.LogLevel)); err != nil {
		l = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: l}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
