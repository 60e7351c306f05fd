// Command llama-server is a thin OpenAI-compatible server over a prebuilt
// libllama, with the command line and the API of llama.cpp's own server. The
// tests use it as a real inference engine; it refuses flags and request fields
// that it does not honour, rather than measure something else in silence.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hybridgroup/yzma/pkg/llama"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run serves until SIGTERM or SIGINT and returns the exit code: 0 after a
// signal, 1 on failure, 2 on a wrong command line.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	o, err := parse(args)
	if err != nil {
		fmt.Fprintf(stderr, "llama-server: error: %v\n", err)
		return 2
	}
	if o.Help {
		fmt.Fprint(stdout, usage())
		return 0
	}
	libraries, build, err := findLibraries()
	if err != nil {
		fmt.Fprintf(stderr, "llama-server: error: %v\n", err)
		return 1
	}
	if o.Version {
		fmt.Fprintf(stdout, "version: %s\n", build)
		return 0
	}
	if err := serve(ctx, o, libraries, build, stderr); err != nil {
		fmt.Fprintf(stderr, "llama-server: error: %v\n", err)
		return 1
	}
	return 0
}

// findLibraries returns the folder of libllama and the version that is
// reported: LLAMA_LIB_DIR, else ../lib/llama beside the program.
func findLibraries() (dir, build string, err error) {
	dir = os.Getenv("LLAMA_LIB_DIR")
	if dir == "" {
		self, err := os.Executable()
		if err != nil {
			return "", "", fmt.Errorf("find libraries: %w", err)
		}
		dir = filepath.Join(filepath.Dir(self), "..", "lib", "llama")
	}
	found, err := filepath.Glob(filepath.Join(dir, "libllama.v*.so"))
	if err != nil || len(found) != 1 {
		return "", "", fmt.Errorf("find libraries: want one libllama.v*.so in %s, found %d", dir, len(found))
	}
	version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(found[0]), "libllama.v"), ".so")
	binding := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/hybridgroup/yzma" {
				binding = dep.Version
			}
		}
	}
	return dir, version + "+yzma" + strings.TrimPrefix(binding, "v"), nil
}

func serve(ctx context.Context, o options, libraries, build string, stderr io.Writer) error {
	start := time.Now()
	// Listen first: a port that is taken must fail before a model is loaded.
	listener, err := net.Listen("tcp", net.JoinHostPort(o.Host, strconv.Itoa(o.Port)))
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s, err := load(o, libraries, build)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	decoding, stopDecoding := context.WithCancel(ctx)
	defer stopDecoding()
	decoded := make(chan error, 1)
	go func() { decoded <- s.batcher.run(decoding) }()

	web := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- web.Serve(listener) }()
	fmt.Fprintf(stderr, "llama-server: %s: listening on http://%s, model %s, %d slots of %d tokens, after %v\n",
		build, listener.Addr(), o.Alias, o.Parallel, s.slotContext, time.Since(start).Round(time.Millisecond))

	select {
	case <-ctx.Done():
		err = nil
	case err = <-served:
	case err = <-decoded:
		decoded <- nil
	}
	// Running answers end at once with an error frame; their clients see it.
	stopDecoding()
	err = errors.Join(err, <-decoded)
	closing, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if web.Shutdown(closing) != nil {
		_ = web.Close()
	}
	return err
}

func load(o options, libraries, build string) (*server, error) {
	if err := llama.Load(libraries); err != nil {
		return nil, fmt.Errorf("load libllama from %s: %w", libraries, err)
	}
	llama.LogSet(llama.LogSilent())
	llama.Init()
	if _, err := os.Stat(o.Model); err != nil {
		return nil, fmt.Errorf("load model: %w", err)
	}
	model, err := llama.ModelLoadFromFile(o.Model, llama.ModelDefaultParams())
	if err != nil || model == 0 {
		return nil, fmt.Errorf("load model %s: not a model that this libllama reads: %w", o.Model, err)
	}
	trained := int(llama.ModelNCtxTrain(model))
	total := o.Ctx
	if total == 0 {
		total = trained
	}
	perSlot := total / o.Parallel
	if perSlot < 1 {
		return nil, fmt.Errorf("--ctx-size %d is less than one token for each of %d slots", total, o.Parallel)
	}
	p := llama.ContextDefaultParams()
	p.NCtx = uint32(perSlot * o.Parallel)
	p.NBatch, p.NUbatch = uint32(o.Batch), uint32(o.Batch)
	p.NSeqMax = uint32(o.Parallel)
	p.NThreads, p.NThreadsBatch = int32(o.Threads), int32(o.ThreadsBatch)
	c, err := llama.InitFromModel(model, p)
	if err != nil {
		return nil, fmt.Errorf("create context: %w", err)
	}
	memory, err := llama.GetMemory(c)
	if err != nil {
		return nil, fmt.Errorf("create context: %w", err)
	}
	vocab := llama.ModelGetVocab(model)
	return &server{
		options: o, build: build, vocab: vocab, vocabSize: llama.VocabNTokens(vocab),
		trained: trained, slotContext: perSlot, template: llama.ModelChatTemplate(model, ""),
		parameters: llama.ModelNParams(model),
		batcher: &batcher{
			ctx: c, vocab: vocab, memory: memory, batch: llama.BatchInit(int32(o.Batch), 0, 1), perStep: o.Batch,
			slots: make([]slot, o.Parallel), incoming: make(chan *job, 4096),
		},
	}, nil
}
