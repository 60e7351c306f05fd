package site

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"sbench/internal/batch"
	"sbench/internal/diag"
	"sbench/internal/setting"
	"sbench/internal/strictyaml"
	"sbench/internal/unit"
)

// MaxBytes is the size of the largest site file that is read.
const MaxBytes = 1 << 20

// priorities are the tiers of work.
var priorities = []string{"urgent", "normal", "bulk"}

// defaults is a site that says nothing.
func defaults() Site {
	return Site{
		HardwareClass: "real",
		Slurm:         Slurm{Timeout: 60 * time.Second},
		SubmitAs:      SubmitAsUser,
		Roles:         Roles{Associations: true},
		Partitions:    map[string]Partition{},
		Priorities:    map[string]Priority{"urgent": {Weight: 16}, "normal": {Weight: 4}, "bulk": {Weight: 1}},
		FairShare:     FairShare{Source: SharesEqual, Weights: map[string]int{}},
		Hardware:      map[string]Hardware{},
		Limits:        Limits{MaxArraySize: 1001, MaxSubmit: 1000, MaxQueue: 500, ColdStarts: 1, TaskMinutes: 60},
		Jobs:          Jobs{Exclusive: "exclusive", Memory: "0", Requeue: true, Signal: 60 * time.Second, Options: map[string]string{}},
		Engine:        Engine{Env: map[string]string{}, Hash: HashAlways, Clocks: Clocks{Method: batch.ClocksNone}},
		Secrets:       map[string]string{},
		PollInterval:  15 * time.Second,
		Retention:     Retention{Failed: 30 * 24 * time.Hour, Unsealed: 7 * 24 * time.Hour, Compact: 24 * time.Hour},
	}
}

// Load reads a site file. It returns nil where the list has errors; the list may
// hold warnings otherwise. filename is for messages only.
func Load(data []byte, filename string) (*Site, diag.List) {
	faults := diag.NewCollector(filename, data)
	root := strictyaml.Parse(data, MaxBytes, faults)
	if root == nil {
		return nil, faults.List()
	}
	l := loader{Reader: strictyaml.Reader{Faults: faults}, site: defaults(), at: map[string]diag.Pos{}, spoilt: map[string]bool{}}
	l.top(root)
	l.check(root)
	list := faults.List()
	if list.HasErrors() {
		return nil, list
	}
	return &l.site, list
}

type loader struct {
	strictyaml.Reader
	site Site
	at   map[string]diag.Pos // where a path was given
	// spoilt are the blocks with a fault of their own: what follows from it is
	// not reported.
	spoilt map[string]bool
}

func (l *loader) top(root *strictyaml.Node) {
	s := &l.site
	l.Fields(root, "", []strictyaml.Field{
		{Key: "site", Read: func(n *strictyaml.Node, p string) { l.Word(n, p, []string{"v1"}) }},
		{Key: "name", Read: l.name(&s.Name)},
		{Key: "cluster", Read: l.name(&s.Cluster)},
		{Key: "description", Read: l.text(&s.Description)},
		{Key: "hardware_class", Read: word(l, &s.HardwareClass, "real", "emulated")},
		{Key: "submit_as", Read: word(l, &s.SubmitAs, SubmitAsUser, SubmitAsService)},
		{Key: "roles", Read: l.block([]strictyaml.Field{
			{Key: "operators", Read: l.users(&s.Roles.Operators)},
			{Key: "admins", Read: l.users(&s.Roles.Admins)},
			{Key: "from_slurm", Read: l.bool(&s.Roles.FromSlurm)},
			{Key: "associations", Read: l.bool(&s.Roles.Associations)},
		})},
		{Key: "poll_interval", Read: l.duration(&s.PollInterval, time.Second, time.Hour)},
		{Key: "slurm", Read: l.block([]strictyaml.Field{
			{Key: "conf", Read: l.path(&s.Slurm.Conf)},
			{Key: "bin", Read: l.path(&s.Slurm.Bin)},
			{Key: "timeout", Read: l.duration(&s.Slurm.Timeout, time.Second, time.Hour)},
		})},
		{Key: "defaults", Read: l.block([]strictyaml.Field{
			{Key: "partition", Read: l.name(&s.Defaults.Partition)},
			{Key: "account", Read: l.name(&s.Defaults.Account)},
			{Key: "qos", Read: l.name(&s.Defaults.QOS)},
		})},
		{Key: "partitions", Read: named(l, s.Partitions, func(v *Partition) []strictyaml.Field {
			return []strictyaml.Field{{Key: "max_time", Read: l.duration(&v.MaxTime, time.Minute, 366*24*time.Hour)}}
		})},
		{Key: "priorities", Read: l.priorities},
		{Key: "fair_share", Read: l.block([]strictyaml.Field{
			{Key: "source", Read: word(l, &s.FairShare.Source, SharesEqual, SharesSlurm)},
			{Key: "weights", Read: l.weights},
		})},
		{Key: "hardware", Read: named(l, s.Hardware, l.hardware)},
		{Key: "paths", Read: l.block([]strictyaml.Field{
			{Key: "spool", Read: l.path(&s.Paths.Spool)},
			{Key: "results", Read: l.path(&s.Paths.Results)},
			{Key: "models", Read: l.path(&s.Paths.Models)},
			{Key: "images", Read: l.path(&s.Paths.Images)},
			{Key: "cache", Read: l.path(&s.Paths.Cache)},
			{Key: "temp", Read: l.path(&s.Paths.Temp)},
			{Key: "apptainer", Read: l.path(&s.Paths.Apptainer)},
			{Key: "runner", Read: l.path(&s.Paths.Runner)},
			{Key: "gpu_helper", Read: l.path(&s.Paths.GPUHelper)},
		})},
		{Key: "limits", Read: l.block([]strictyaml.Field{
			{Key: "max_array_size", Read: l.count(&s.Limits.MaxArraySize, 2, 4_000_001)},
			{Key: "max_submit", Read: l.count(&s.Limits.MaxSubmit, 1, 1_000_000)},
			{Key: "max_queue", Read: l.count(&s.Limits.MaxQueue, 1, 1_000_000)},
			{Key: "max_running", Read: l.count(&s.Limits.MaxRunning, 0, 1_000_000)},
			{Key: "cold_starts", Read: l.count(&s.Limits.ColdStarts, 0, 1_000_000)},
			{Key: "task_minutes", Read: l.count(&s.Limits.TaskMinutes, 1, 7*24*60)},
		})},
		{Key: "jobs", Read: l.block([]strictyaml.Field{
			{Key: "exclusive", Read: word(l, &s.Jobs.Exclusive, "exclusive", "gres")},
			{Key: "memory", Read: l.memory(&s.Jobs.Memory)},
			{Key: "requeue", Read: l.bool(&s.Jobs.Requeue)},
			{Key: "signal", Read: l.duration(&s.Jobs.Signal, time.Second, time.Hour)},
			{Key: "options", Read: l.options},
		})},
		{Key: "engine", Read: l.block([]strictyaml.Field{
			{Key: "env", Read: l.variables(s.Engine.Env)},
			{Key: "pass_env", Read: l.passEnv},
			{Key: "binds", Read: l.binds},
			{Key: "container_args", Read: l.containerArgs},
			{Key: "client_cpus", Read: l.count(&s.Engine.ClientCPUs, 0, 4096)},
			{Key: "start_timeout", Read: l.duration(&s.Engine.StartTimeout, time.Second, 24*time.Hour)},
			{Key: "stop_timeout", Read: l.duration(&s.Engine.StopTimeout, time.Second, time.Hour)},
			{Key: "digest_timeout", Read: l.duration(&s.Engine.DigestTimeout, time.Second, 24*time.Hour)},
			{Key: "hash", Read: word(l, &s.Engine.Hash, HashAlways, HashOnce)},
			{Key: "cache_limit", Read: l.bytes(&s.Engine.CacheLimit)},
			{Key: "verify_key", Read: l.path(&s.Engine.VerifyKey)},
			{Key: "min_shm", Read: l.bytes(&s.Engine.MinSHM)},
			{Key: "min_memlock", Read: l.bytes(&s.Engine.MinMemlock)},
			{Key: "clocks", Read: l.block([]strictyaml.Field{
				{Key: "method", Read: word(l, &s.Engine.Clocks.Method, batch.ClocksNone, batch.ClocksSlurm, batch.ClocksHelper)},
				{Key: "helper", Read: l.texts(&s.Engine.Clocks.Helper)},
			})},
		})},
		{Key: "secrets", Read: l.secrets},
		{Key: "mirrors", Read: l.mirrors},
		{Key: "retention", Read: l.block([]strictyaml.Field{
			{Key: "failed", Read: l.duration(&s.Retention.Failed, 0, 100*365*24*time.Hour)},
			{Key: "unsealed", Read: l.duration(&s.Retention.Unsealed, 0, 100*365*24*time.Hour)},
			{Key: "compact", Read: l.duration(&s.Retention.Compact, 0, 365*24*time.Hour)},
		})},
	})
}

func (l *loader) hardware(h *Hardware) []strictyaml.Field {
	link := func(n *strictyaml.Node, p string) {
		if v, ok := l.Word(n, p, []string{"nvlink", "pcie", "none"}); ok {
			h.Link = v
		}
	}
	return []strictyaml.Field{
		{Key: "gres", Read: l.match(&h.GRES, gresForm, "a GRES without a count, such as gpu:h100")},
		{Key: "gpus_per_node", Read: l.count(&h.GPUsPerNode, 0, 64)},
		{Key: "nodes", Read: l.count(&h.Nodes, 0, 1_000_000)},
		{Key: "cpus_per_node", Read: l.count(&h.CPUsPerNode, 0, 4096)},
		{Key: "cpus_per_gpu", Read: l.count(&h.CPUsPerGPU, 0, 4096)},
		{Key: "memory_per_gpu", Read: l.bytes(&h.MemoryPerGPU)},
		{Key: "constraint", Read: l.match(&h.Constraint, constraintForm, "a Slurm feature expression")},
		{Key: "partition", Read: l.name(&h.Partition)},
		{Key: "nvml_name", Read: l.text(&h.NVMLName)},
		{Key: "link", Read: link},
		{Key: "max_queue", Read: l.count(&h.MaxQueue, 0, 1_000_000)},
	}
}

var (
	nameForm       = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$`)
	gresForm       = regexp.MustCompile(`^gpu(:[A-Za-z0-9_.-]+)?$`)
	hardwareForm   = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)
	constraintForm = regexp.MustCompile(`^[A-Za-z0-9_.:,|&*()\[\]!=-]+$`)
	memoryForm     = regexp.MustCompile(`^[0-9]+[KMGT]?$`)
	variableForm   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	optionForm     = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
)

type readFunc = func(n *strictyaml.Node, p string)

func (l *loader) block(fields []strictyaml.Field) readFunc {
	return func(n *strictyaml.Node, p string) { l.Fields(n, p, fields) }
}

// named reads a mapping of names to blocks.
func named[T any](l *loader, into map[string]T, fields func(*T) []strictyaml.Field) readFunc {
	return func(n *strictyaml.Node, p string) {
		if !l.Map(n, p) {
			return
		}
		for _, e := range n.Entries {
			form := nameForm
			if p == "hardware" {
				form = hardwareForm
			}
			if len(e.Key) > 100 || !form.MatchString(e.Key) {
				l.Faults.Errorf(e.KeyAt, "", "%s: %q is not a name that can be used here", p, e.Key)
				continue
			}
			var v T
			before := l.Faults.Count()
			l.at[p+"."+e.Key] = e.KeyAt
			if !e.Value.Null { // "gpu:" alone is a partition without further properties
				l.Fields(e.Value, p+"."+e.Key, fields(&v))
			}
			into[e.Key] = v
			l.spoilt[p+"."+e.Key] = l.Faults.Count() > before
		}
	}
}

func (l *loader) text(into *string) readFunc {
	return func(n *strictyaml.Node, p string) {
		v, ok := l.Text(n, p)
		if !ok {
			return
		}
		if problem := setting.CheckText(v); problem != "" {
			l.Faults.Errorf(n.At, "", "%s %s", p, problem)
			return
		}
		l.at[p] = n.At
		*into = v
	}
}

func (l *loader) match(into *string, form *regexp.Regexp, want string) readFunc {
	return func(n *strictyaml.Node, p string) {
		var v string
		if l.text(&v)(n, p); v == "" {
			return
		}
		if !form.MatchString(v) {
			l.Faults.Errorf(n.At, "", "%s is not %s: %q", p, want, v)
			return
		}
		*into = v
	}
}

func (l *loader) name(into *string) readFunc {
	return l.match(into, nameForm, "a name of letters, digits and _ . @ + -")
}

// users reads a list of user names.
func (l *loader) users(into *[]string) readFunc {
	return func(n *strictyaml.Node, p string) {
		names, ok := l.Texts(n, p)
		for _, v := range names {
			if !nameForm.MatchString(v) {
				l.Faults.Errorf(n.At, "", "%s: %q is no user's name", p, v)
				ok = false
			}
		}
		if ok {
			*into = names
		}
	}
}

func (l *loader) path(into *string) readFunc {
	return func(n *strictyaml.Node, p string) {
		var v string
		if l.text(&v)(n, p); v == "" {
			return
		}
		if problem := checkPath(v); problem != "" {
			l.Faults.Errorf(n.At, "", "%s %s: %q", p, problem, v)
			return
		}
		*into = path.Clean(v)
	}
}

// checkPath says what is wrong with an absolute path, "" if nothing.
func checkPath(v string) string {
	switch {
	case !strings.HasPrefix(v, "/"):
		return "is not an absolute path"
	case slices.Contains(strings.Split(v, "/"), ".."):
		return "contains .."
	case strings.ContainsAny(v, ":,"):
		return "contains : or , which cannot be bound into a container"
	}
	return ""
}

func (l *loader) duration(into *time.Duration, low, high time.Duration) readFunc {
	return func(n *strictyaml.Node, p string) {
		v, ok := l.Duration(n, p)
		switch {
		case !ok:
		case v < low || v > high:
			l.Faults.Errorf(n.At, "", "%s is not between %s and %s", p, unit.FormatDuration(low), unit.FormatDuration(high))
		default:
			*into = v
		}
	}
}

func (l *loader) count(into *int, low, high int64) readFunc {
	return func(n *strictyaml.Node, p string) {
		if v, ok := l.IntBetween(n, p, low, high); ok {
			*into = int(v)
		}
	}
}

func (l *loader) bytes(into *int64) readFunc {
	return func(n *strictyaml.Node, p string) {
		if v, ok := l.Bytes(n, p); ok {
			l.at[p] = n.At
			*into = v
		}
	}
}

func (l *loader) bool(into *bool) readFunc {
	return func(n *strictyaml.Node, p string) {
		if v, ok := l.Bool(n, p); ok {
			*into = v
		}
	}
}

func word[T ~string](l *loader, into *T, words ...T) readFunc {
	return func(n *strictyaml.Node, p string) {
		list := make([]string, len(words))
		for i, w := range words {
			list[i] = string(w)
		}
		if v, ok := l.Word(n, p, list); ok {
			*into = T(v)
		}
	}
}

func (l *loader) texts(into *[]string) readFunc {
	return func(n *strictyaml.Node, p string) {
		list, ok := l.Texts(n, p)
		if !ok {
			return
		}
		for i, v := range list {
			if problem := setting.CheckText(v); problem != "" {
				l.Faults.Errorf(n.Items[i].At, "", "an element of %s %s", p, problem)
				return
			}
		}
		*into = list
	}
}

// memory is a value of sbatch --mem; 0 may be written as a number.
func (l *loader) memory(into *string) readFunc {
	return func(n *strictyaml.Node, p string) {
		v, ok := l.Rendered(n, p)
		switch {
		case !ok:
		case v != "" && !memoryForm.MatchString(v):
			l.Faults.Errorf(n.At, "as sbatch --mem: 0 for all of it, 64G, or \"\" for none", "%s is not a memory size of Slurm: %q", p, v)
		default:
			*into = v
		}
	}
}

func (l *loader) priorities(n *strictyaml.Node, p string) {
	if !l.Map(n, p) {
		return
	}
	for _, e := range n.Entries {
		if !slices.Contains(priorities, e.Key) {
			l.Unknown(e, p, priorities)
			continue
		}
		v := l.site.Priorities[e.Key]
		l.Fields(e.Value, p+"."+e.Key, []strictyaml.Field{
			{Key: "qos", Read: l.name(&v.QOS)},
			{Key: "nice", Read: l.count(&v.Nice, -2147483645, 2147483645)},
			{Key: "weight", Read: l.count(&v.Weight, 1, 1000)},
		})
		l.site.Priorities[e.Key] = v
	}
}

// weights reads the weights of accounts.
func (l *loader) weights(n *strictyaml.Node, p string) {
	if !l.Map(n, p) {
		return
	}
	for _, e := range n.Entries {
		if !nameForm.MatchString(e.Key) {
			l.Faults.Errorf(e.KeyAt, "", "%s: %q is no account's name", p, e.Key)
			continue
		}
		v := 1
		l.count(&v, 1, 1000)(e.Value, p+"."+e.Key)
		l.site.FairShare.Weights[e.Key] = v
	}
}

// variables reads names and values of environment variables.
func (l *loader) variables(into map[string]string) readFunc {
	return func(n *strictyaml.Node, p string) {
		if !l.Map(n, p) {
			return
		}
		for _, e := range n.Entries {
			if !variableForm.MatchString(e.Key) {
				l.Faults.Errorf(e.KeyAt, "", "%s: %q is not the name of an environment variable", p, e.Key)
				continue
			}
			v, ok := l.Rendered(e.Value, p+"."+e.Key)
			if !ok {
				continue
			}
			if problem := setting.CheckText(v); problem != "" {
				l.Faults.Errorf(e.Value.At, "", "%s.%s %s", p, e.Key, problem)
				continue
			}
			into[e.Key] = v
		}
	}
}

// containerArgs refuses what would let an engine run something else than the image
// whose digest was checked.
func (l *loader) containerArgs(n *strictyaml.Node, p string) {
	var list []string
	l.texts(&list)(n, p)
	for i, v := range list {
		name, _, _ := strings.Cut(v, "=")
		if slices.Contains([]string{"-w", "--writable", "--writable-tmpfs", "-o", "--overlay"}, name) {
			l.Faults.Errorf(n.Items[i].At, "leave it out", "%s: %s lays something that can be written over the image: what runs would not be what was hashed", p, name)
			return
		}
	}
	l.site.Engine.ContainerArgs = list
}

func (l *loader) passEnv(n *strictyaml.Node, p string) {
	list, ok := l.Texts(n, p)
	if !ok {
		return
	}
	for i, v := range list {
		if !variableForm.MatchString(v) {
			l.Faults.Errorf(n.Items[i].At, "", "%s: %q is not the name of an environment variable", p, v)
			return
		}
	}
	l.site.Engine.PassEnv = list
}

func (l *loader) binds(n *strictyaml.Node, p string) {
	if !l.List(n, p) {
		return
	}
	for _, item := range n.Items {
		var b Bind
		l.Fields(item, p, []strictyaml.Field{
			{Key: "source", Read: l.path(&b.Source)},
			{Key: "target", Read: l.path(&b.Target)},
			{Key: "read_only", Read: l.bool(&b.ReadOnly)},
		})
		if item.Kind == strictyaml.Map && item.Get("source") == nil {
			l.Faults.Errorf(item.At, "", "%s: source is missing", p)
		}
		l.site.Engine.Binds = append(l.site.Engine.Binds, b)
	}
}

func (l *loader) secrets(n *strictyaml.Node, p string) {
	if !l.Map(n, p) {
		return
	}
	for _, e := range n.Entries {
		if !variableForm.MatchString(e.Key) {
			l.Faults.Concealf(e.KeyAt, "", "%s: %q is not the name of an environment variable", p, e.Key)
			continue
		}
		// A secret that was pasted here instead of a path must not be printed.
		file, problem := e.Value.Text, "is not text"
		if e.Value.Kind == strictyaml.Scalar && !e.Value.Null {
			problem = checkPath(file)
			if text := setting.CheckText(file); text != "" {
				problem = text
			}
		}
		if problem != "" {
			l.Faults.Concealf(e.Value.At, "name the file that holds the secret", "%s.%s %s", p, e.Key, problem)
			continue
		}
		l.site.Secrets[e.Key] = file
	}
}
