package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// build makes the engine, or finds it up to date, and returns its folder.
func build(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../.cache/engine")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("./build.sh", dir).CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatalf("build the engine: %v", err)
	}
	return dir
}

// A list of libraries longer than a pipe holds must not end the build: under
// load, a short one does the same.
func TestBuild_LongLibraryCache(t *testing.T) {
	dir := build(t)
	ldconfig, err := exec.LookPath("ldconfig")
	if err != nil {
		ldconfig = "/sbin/ldconfig"
	}
	bin := t.TempDir()
	script := "#!/bin/sh\nset -e\n" + ldconfig + " -p\nyes '\tlibfiller.so (libc6,x86-64) => /lib/libfiller.so' | head -n 20000\n"
	if err := os.WriteFile(filepath.Join(bin, "ldconfig"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("./build.sh", dir)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "up to date") {
		t.Fatalf("build.sh with a long list of libraries: %v\n%s", err, out)
	}
}

// freePort returns a port that was free a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// start runs the engine in the image and returns its URL and a function that
// stops it and returns its exit error.
func start(t *testing.T, program, dir, image string) (url string, stop func() error) {
	t.Helper()
	port := freePort(t)
	cmd := exec.Command(program, "exec", "--containall", "--no-home",
		"--bind", filepath.Join(dir, "model.gguf")+":/models/with space/model.gguf:ro",
		image, "llama-server", "-m", "/models/with space/model.gguf", "--alias", "tiny", "--host", "127.0.0.1", "--port", port, "-c", "4096", "-np", "4")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	url = "http://127.0.0.1:" + port
	deadline := time.Now().Add(60 * time.Second)
	for {
		response, err := http.Get(url + "/health")
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				break
			}
		}
		select {
		case err := <-done:
			t.Fatalf("the engine ended before it was ready: %v\n%s", err, log.String())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("the engine is not ready after a minute\n%s", log.String())
		}
	}
	return url, func() error {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		select {
		case err := <-done:
			return err
		case <-time.After(20 * time.Second):
			return fmt.Errorf("still running 20 s after SIGTERM\n%s", log.String())
		}
	}
}

type answer struct {
	Choices []struct {
		Text   string  `json:"text"`
		Finish *string `json:"finish_reason"`
		Delta  struct {
			Content string `json:"content"`
		} `json:"delta"`
	} `json:"choices"`
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	} `json:"usage"`
	Error any `json:"error"`
}

func post(t *testing.T, url, body string) *http.Response {
	t.Helper()
	response, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

// stream reads a streamed answer to its [DONE] and returns its text, its last
// finish reason and usage.
func stream(t *testing.T, r io.Reader) (text, finish string, usage [2]int) {
	t.Helper()
	lines := bufio.NewScanner(r)
	done := false
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			done = true
			continue
		}
		var a answer
		if err := json.Unmarshal([]byte(data), &a); err != nil || a.Error != nil {
			t.Fatalf("frame %q: %v", data, err)
		}
		for _, c := range a.Choices {
			text += c.Text + c.Delta.Content
			if c.Finish != nil {
				finish = *c.Finish
			}
		}
		if a.Usage != nil {
			usage = [2]int{a.Usage.Prompt, a.Usage.Completion}
		}
	}
	if err := lines.Err(); err != nil || !done {
		t.Fatalf("the stream ended without [DONE]: %v", err)
	}
	return text, finish, usage
}

// TestEngine generates tokens with the image under every container program
// there is: the stand-in always, the real one where it is installed.
func TestEngine(t *testing.T) {
	dir := build(t)
	programs := map[string]string{"stand-in": standIn(t)}
	for _, name := range []string{"apptainer", "singularity"} {
		if path, err := exec.LookPath(name); err == nil {
			programs[name] = path
		} else {
			t.Logf("no %s on PATH: it is not tested", name)
		}
	}
	for name, program := range programs {
		t.Run(name, func(t *testing.T) {
			version, err := exec.Command(program, "--version").Output()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("running %s", version)
			for _, image := range []string{"engine.sif", "engine-drifted.sif"} {
				url, stop := start(t, program, dir, filepath.Join(dir, image))
				checkAnswers(t, url)
				if err := stop(); err != nil {
					t.Errorf("%s: after SIGTERM: %v", image, err)
				}
			}
			checkExitCodes(t, program, filepath.Join(dir, "engine.sif"))
		})
	}
}

// standIn copies the stand-in to a folder of the test's own, with its cache.
func standIn(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("apptainer-standin")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "apptainer")
	if err := os.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func checkAnswers(t *testing.T, url string) {
	t.Helper()
	text, finish, usage := stream(t, post(t, url+"/v1/completions",
		`{"prompt":"The cluster","max_tokens":6,"temperature":0,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`).Body)
	if want := " runs each benchmark inside a time"; text != want {
		t.Errorf("completion: %q, want %q", text, want)
	}
	if finish != "length" || usage != [2]int{2, 6} {
		t.Errorf("completion: finish %q and usage %v, want length and [2 6]", finish, usage)
	}
	text, _, usage = stream(t, post(t, url+"/v1/chat/completions",
		`{"messages":[{"role":"user","content":"hello"}],"max_completion_tokens":64,"temperature":1,"seed":7,"stream":true,"stream_options":{"include_usage":true}}`).Body)
	if len(text) < 64 || usage[1] != 64 {
		t.Errorf("chat: %d bytes and usage %v, want 64 tokens of text", len(text), usage)
	}
	if r := post(t, url+"/v1/completions", `{"prompt":"`+strings.Repeat("word ", 5000)+`","max_tokens":1}`); r.StatusCode != http.StatusBadRequest {
		t.Errorf("a prompt over the context: status %d, want 400", r.StatusCode)
	}
	var tokens struct{ Tokens []int }
	if err := json.NewDecoder(post(t, url+"/tokenize", `{"content":"The cluster runs"}`).Body).Decode(&tokens); err != nil || len(tokens.Tokens) != 3 {
		t.Errorf("tokenize: %v, %v, want 3 tokens", tokens.Tokens, err)
	}
	checkKeepAlive(t, url)
	checkCancel(t, url)
}

// checkKeepAlive: many streamed answers over one connection.
func checkKeepAlive(t *testing.T, url string) {
	t.Helper()
	dials := 0
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		dials++
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}}
	defer client.CloseIdleConnections()
	for range 150 {
		response, err := client.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"The","max_tokens":1,"stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
	}
	if dials != 1 {
		t.Errorf("150 requests took %d connections, want 1", dials)
	}
}

// checkCancel: a client that goes away frees its slot.
func checkCancel(t *testing.T, url string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(`{"prompt":"The","max_tokens":1000,"ignore_eos":true,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := response.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	cancel()
	deadline := time.Now().Add(10 * time.Second)
	for !strings.Contains(get(t, url+"/metrics"), "llamacpp:requests_processing 0\n") {
		if time.Now().After(deadline) {
			t.Fatal("the slot of a client that is gone is still busy")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// checkExitCodes: the program's own code passes through, and 255 is set-up.
func checkExitCodes(t *testing.T, program, image string) {
	t.Helper()
	for _, c := range []struct {
		code int
		args []string
	}{
		{0, []string{image, "llama-server", "--version"}},
		{2, []string{image, "llama-server", "--no-such-flag"}},
		{1, []string{image, "llama-server", "-m", "/no/such/model", "--port", "0"}},
		{255, []string{image, "no-such-program"}},
		{255, []string{image + ".missing", "llama-server"}},
	} {
		cmd := exec.Command(program, append([]string{"exec", "--containall", "--no-home"}, c.args...)...)
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != c.code {
			t.Errorf("%v: exit code %d, want %d\n%s", c.args, got, c.code, out)
		}
	}
}

// TestStandIn_ContentFollowsFile: a cached image never stands in for a file
// whose content changed under the same name.
func TestStandIn_ContentFollowsFile(t *testing.T) {
	dir := build(t)
	program := standIn(t)
	image := filepath.Join(t.TempDir(), "image.sif")
	seen := map[string]bool{}
	for _, source := range []string{"engine.sif", "engine-drifted.sif", "engine.sif"} {
		content, err := os.ReadFile(filepath.Join(dir, source))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(image, content, 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(program, "exec", "--containall", "--no-home", image, "llama-server", "--version").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		kept, err := filepath.Glob(filepath.Join(filepath.Dir(program), "unpacked", "*", "etc", "engine-release"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range kept {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			seen[string(text)] = true
		}
	}
	if len(seen) != 2 {
		t.Errorf("unpacked images: %v, want both", seen)
	}
}
