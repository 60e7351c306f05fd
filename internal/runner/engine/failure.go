package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// Cause is why an engine failed, as far as its log says.
type Cause string

// The causes.
const (
	CauseUnknown   Cause = "unknown"
	CauseDeviceOOM Cause = "device_out_of_memory"
	CauseHostOOM   Cause = "host_out_of_memory"
	CauseUsage     Cause = "usage" // an option that the engine does not take
	CauseModel     Cause = "model" // a checkpoint that it cannot load
	CauseLibrary   Cause = "library"
	CauseNetwork   Cause = "network" // the ranks do not reach each other, or a port is taken
	CauseCrash     Cause = "crash"
)

// Failure is a log read.
type Failure struct {
	Cause Cause
	Line  string // the line of the log that says it best, as it is
	// Signature is equal for two failures of the same cause: addresses, numbers,
	// times and paths of the run are left out of it.
	Signature string
}

var causes = []struct {
	cause   Cause
	pattern *regexp.Regexp
}{
	{CauseDeviceOOM, regexp.MustCompile(`(?i)(CUDA|HIP|device).*out of memory|torch\.(cuda\.)?OutOfMemoryError|cudaMalloc failed: out of memory|CUDA_ERROR_OUT_OF_MEMORY|No available memory for the cache blocks|ErrorMemoryAllocation|Free memory on device .* is less than desired GPU memory utilization|larger than the available KV cache memory|Not enough memory\. Please try to increase --mem-fraction-static|CUBLAS_STATUS_ALLOC_FAILED`)},
	{CauseHostOOM, regexp.MustCompile(`(?i)oom[-_ ]kill|std::bad_alloc|(cannot|can't) allocate memory|MemoryError|^Killed$`)},
	{CauseNetwork, regexp.MustCompile(`(?i)NCCL error|nccl(System|Remote|Internal|Unhandled\w*)Error|DistNetworkError|client socket has (failed to connect|timed out)|Gloo connectFullMesh failed|Address already in use|EADDRINUSE`)},
	{CauseLibrary, regexp.MustCompile(`(?i)error while loading shared libraries|cannot open shared object|ModuleNotFoundError|ImportError|symbol lookup error|executable file not found|GLIBC_\S+' not found`)},
	{CauseUsage, regexp.MustCompile(`(?i)unrecognized arguments?|invalid argument|unknown argument|error: argument|flag provided but not defined|No such option|unknown option|Got unexpected extra argument`)},
	{CauseModel, regexp.MustCompile(`(?i)failed to load model|error loading model|is not a valid model|does not appear to have a file named|safetensors.*(corrupt|error)|SafetensorError|unsupported model|Model architectures? .* not supported`)},
	{CauseCrash, regexp.MustCompile(`(?i)segmentation fault|SIGSEGV|SIGABRT|SIGBUS|^panic: |fatal error:|core dumped|Assertion .* failed|GGML_ASSERT|illegal memory access|Traceback \(most recent call last\)`)},
}

// fatal is how Apptainer and Singularity begin a line about their own fault.
var fatal = regexp.MustCompile(`^FATAL:\s+(.*)`)

// ContainerFault returns what the container program says about why it could not
// run the image on this node: no FUSE device, no user namespaces, no loop device.
// It is "" where the program ran, or where the image is at fault: 255 is the
// engine's own exit status too.
func ContainerFault(log string, exitCode int) string {
	if exitCode != 255 {
		return ""
	}
	for line := range strings.Lines(log) {
		m := fatal.FindStringSubmatch(strings.TrimSpace(control.ReplaceAllString(line, "")))
		if m != nil && !strings.Contains(m[1], "executable file not found") && !strings.Contains(m[1], "no such file or directory") {
			return shown(m[1])
		}
	}
	return ""
}

// anError matches a line that is worth showing where no cause is recognised.
var anError = regexp.MustCompile(`(?i)\b(error|fatal|exception|failed|cannot|refused)\b`)

// KilledForMemory in how an engine ended says that the kernel killed a process of
// it because memory ran out.
const KilledForMemory = "out of memory: the kernel killed"

// ReadFailure looks for the reason in the end of an engine's log. how is how the
// engine ended ("exit status 1"), or failed to start.
func ReadFailure(log, how string) Failure {
	lines := strings.Split(strings.TrimSpace(control.ReplaceAllString(log, "")), "\n")
	f := Failure{Cause: CauseUnknown}
	for _, c := range causes {
		// The last match: what comes before is often a warning.
		for i := len(lines) - 1; i >= 0 && f.Line == ""; i-- {
			if c.pattern.MatchString(lines[i]) {
				f.Cause, f.Line = c.cause, shown(exceptionLine(lines, i))
			}
		}
		if f.Line != "" {
			break
		}
	}
	if strings.Contains(how, KilledForMemory) && f.Cause != CauseDeviceOOM {
		f.Cause = CauseHostOOM // the kernel says so, whatever the log does
	}
	for i := len(lines) - 1; i >= 0 && f.Line == ""; i-- {
		if anError.MatchString(lines[i]) {
			f.Line = shown(lines[i])
		}
	}
	if f.Line == "" {
		f.Line = shown(lines[len(lines)-1])
	}
	sum := sha256.Sum256([]byte(string(f.Cause) + "\n" + normalize(f.Line) + "\n" + how))
	f.Signature = string(f.Cause) + "-" + hex.EncodeToString(sum[:6])
	return f
}

// exceptionLine returns the line after a Python traceback that names the
// exception, else the line itself.
func exceptionLine(lines []string, i int) string {
	if !strings.Contains(lines[i], "Traceback (most recent call last)") {
		return lines[i]
	}
	for _, line := range lines[i+1:] {
		// The frames are indented; a prefix such as "(EngineCore pid=7) " may precede.
		text := prefix.ReplaceAllString(line, "")
		if text != "" && text[0] != ' ' && strings.Contains(text, ":") {
			return line
		}
	}
	return lines[i]
}

var (
	prefix   = regexp.MustCompile(`^(\([^)]*\) |\[[^\]]*\] |(INFO|WARNING|ERROR) \S+ \S+ \[[^\]]*\] )*`)
	path     = regexp.MustCompile(`(/[\w.+-]+){2,}/?`)
	numeral  = regexp.MustCompile(`0x[0-9a-fA-F]+|\d+([.:]\d+)*`)
	hexadec  = regexp.MustCompile(`\b[0-9a-f]{8,}\b`)
	control  = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
	multiple = regexp.MustCompile(`\s+`)
)

func normalize(line string) string {
	for _, r := range []*regexp.Regexp{prefix, path, hexadec, numeral} {
		line = r.ReplaceAllString(line, "")
	}
	return strings.TrimSpace(multiple.ReplaceAllString(line, " "))
}

// shown makes a line of a log, whose terminal controls are gone, fit to print.
func shown(line string) string {
	line = strings.TrimSpace(line)
	const most = 300
	if len(line) > most {
		line = line[:most] + "…"
	}
	return strings.ToValidUTF8(line, "\uFFFD")
}

// LastLine is the last line of a text that is worth showing, cut to a length.
func LastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(control.ReplaceAllString(text, "")), "\n")
	return shown(strings.TrimSpace(lines[len(lines)-1]))
}
