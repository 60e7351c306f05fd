package setting_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/setting"
)

// TestValidate: one fault each, at its axis.
func TestValidate(t *testing.T) {
	t.Parallel()
	if s := valid(); len(s.Validate()) > 0 {
		t.Fatalf("the plain setting is not valid: %+v", s.Validate())
	}
	digest := "sha256:" + strings.Repeat("a", 64)
	for name, c := range map[string]struct {
		change func(*setting.Setting)
		want   []string // keys of the faults
	}{
		"no model":          {func(s *setting.Setting) { s.Model.Name = "" }, []string{"model.name"}},
		"newline":           {func(s *setting.Setting) { s.Model.Name = "a\nb" }, []string{"model.name"}},
		"control":           {func(s *setting.Setting) { s.Model.Name = "a\x1bb" }, []string{"model.name"}},
		"bidi":              {func(s *setting.Setting) { s.Model.Name = "a\u202eb" }, []string{"model.name"}},
		"UTF-8":             {func(s *setting.Setting) { s.Model.Name = "a\xff" }, []string{"model.name"}},
		"blank":             {func(s *setting.Setting) { s.Model.Name = "a " }, []string{"model.name"}},
		"long":              {func(s *setting.Setting) { s.Model.Name = strings.Repeat("a", 2000) }, []string{"model.name"}},
		"unicode is fine":   {func(s *setting.Setting) { s.Model.Name = "modèle 大" }, nil},
		"digest":            {func(s *setting.Setting) { s.Image.Digest = "sha256:abc" }, []string{"image.digest"}},
		"digest kind":       {func(s *setting.Setting) { s.Image.Digest = "md5:" + strings.Repeat("a", 32) }, []string{"image.digest"}},
		"upper case digest": {func(s *setting.Setting) { s.Image.Digest = strings.ToUpper(digest) }, nil},
		"no weights":        {func(s *setting.Setting) { s.Model.Checkpoint = setting.Checkpoint{} }, []string{"model.checkpoint.path"}},
		"digest alone":      {func(s *setting.Setting) { s.Model.Checkpoint = setting.Checkpoint{Digest: digest} }, nil},
		"image by digest":   {func(s *setting.Setting) { s.Image.Path, s.Image.Digest = "", digest }, nil},
		"program by digest": {func(s *setting.Setting) { s.Image = setting.Image{Kind: setting.ImageHost, Digest: digest} }, []string{"image.path"}},
		"unpinned alone":    {func(s *setting.Setting) { s.Model.Checkpoint = setting.Checkpoint{Digest: setting.Unpinned} }, []string{"model.checkpoint.digest"}},
		"upwards":           {func(s *setting.Setting) { s.Image.Path = "../x.sif" }, []string{"image.path"}},
		"upwards inside":    {func(s *setting.Setting) { s.Image.Path = "/a/../x.sif" }, []string{"image.path"}},
		"option":            {func(s *setting.Setting) { s.Image.Path = "-x" }, []string{"image.path"}},
		"bind":              {func(s *setting.Setting) { s.Model.Checkpoint.Path = "a:b" }, []string{"model.checkpoint.path"}},
		"tag":               {func(s *setting.Setting) { s.Image.Path = "docker://vllm/vllm-openai:v0.9.2" }, []string{"image.path"}},
		"registry":          {func(s *setting.Setting) { s.Image.Path = "docker://vllm/vllm-openai@" + digest }, []string{"image.path"}},
		"sandbox":           {func(s *setting.Setting) { s.Image.Path = "images/vllm/" }, []string{"image.path"}},
		"no image":          {func(s *setting.Setting) { s.Image.Path = "" }, []string{"image.path"}},
		"engine":            {func(s *setting.Setting) { s.Engine.Kind = "tgi" }, []string{"engine.kind"}},
		"no engine":         {func(s *setting.Setting) { s.Engine.Kind = "" }, []string{"engine.kind"}},
		"command":           {func(s *setting.Setting) { s.Engine.Command = []string{"{port}"} }, []string{"engine.command"}},
		"no command":        {func(s *setting.Setting) { s.Engine.Kind = setting.EngineCommand }, []string{"engine.command"}},
		"command arguments": {func(s *setting.Setting) {
			s.Engine.Kind, s.Engine.Command, s.Engine.Args = setting.EngineCommand, []string{"{port}"}, map[string]string{"a": "1"}
		}, []string{"engine.args"}},
		"command newline": {func(s *setting.Setting) {
			s.Engine.Kind, s.Engine.Command = setting.EngineCommand, []string{"{port}", "a\nb"}
		}, []string{"engine.command"}},
		"own argument":     {func(s *setting.Setting) { s.Engine.Args = map[string]string{"port": "1"} }, []string{"engine.args.port"}},
		"dashes":           {func(s *setting.Setting) { s.Engine.Args = map[string]string{"--threads": "1"} }, []string{"engine.args.--threads"}},
		"argument":         {func(s *setting.Setting) { s.Engine.Args = map[string]string{"a b": "1"} }, []string{"engine.args.a b"}},
		"argument newline": {func(s *setting.Setting) { s.Engine.Args = map[string]string{"a": "1\n"} }, []string{"engine.args.a"}},
		"secret":           {func(s *setting.Setting) { s.Engine.Env = map[string]string{"HF_TOKEN": "hf_x"} }, []string{"engine.env.HF_TOKEN"}},
		"owned variable":   {func(s *setting.Setting) { s.Engine.Env = map[string]string{"LD_PRELOAD": "x", "SLURM_JOB_ID": "1"} }, []string{"engine.env.LD_PRELOAD", "engine.env.SLURM_JOB_ID"}},
		"variable":         {func(s *setting.Setting) { s.Engine.Env = map[string]string{"A=B": "1"} }, []string{"engine.env.A=B"}},
		"no hardware":      {func(s *setting.Setting) { s.Hardware.GPU = "" }, []string{"hardware.gpu"}},
		"hardware":         {func(s *setting.Setting) { s.Hardware.GPU = "H100 SXM" }, []string{"hardware.gpu"}},
		"class":            {func(s *setting.Setting) { s.Hardware.Class = "fake" }, []string{"hardware.class"}},
		"constraint":       {func(s *setting.Setting) { s.Hardware.Constraint = "a$(id)" }, []string{"hardware.constraint"}},
		"ranks":            {func(s *setting.Setting) { s.Hardware.GPUs = 4 }, []string{"parallel.tensor"}},
		"ranks of nodes": {func(s *setting.Setting) {
			s.Engine.Kind = setting.EngineVLLM
			s.Hardware.GPUs, s.Hardware.Nodes, s.Parallel.Tensor, s.Parallel.Pipeline = 4, 2, 4, 2
		}, nil},
		"no GPU":        {func(s *setting.Setting) { s.Hardware.GPUs = 0 }, nil},
		"negative GPUs": {func(s *setting.Setting) { s.Hardware.GPUs = -1 }, []string{"hardware.gpus"}},
		"zero ranks":    {func(s *setting.Setting) { s.Parallel.Tensor = 0 }, []string{"parallel.tensor"}},
		"huge ranks":    {func(s *setting.Setting) { s.Parallel.Tensor, s.Parallel.Data = math.MaxInt, math.MaxInt }, []string{"parallel.tensor", "parallel.data"}},
		"clock":         {func(s *setting.Setting) { s.Environment.SMClock = "1410" }, []string{"environment.sm_clock"}},
		"clock in GHz":  {func(s *setting.Setting) { s.Environment.SMClock = "1.41GHz" }, nil},
		"power":         {func(s *setting.Setting) { s.Environment.PowerLimit = "much" }, []string{"environment.power_limit"}},
		"mig":           {func(s *setting.Setting) { s.Environment.MIG = "on" }, []string{"environment.mig"}},
		"llama.cpp on two nodes": {func(s *setting.Setting) {
			s.Engine.Kind, s.Hardware.Nodes, s.Parallel.Pipeline = setting.EngineLlamaCpp, 2, 2
		}, []string{"engine.kind"}},
		"NaN":               {func(s *setting.Setting) { s.Workload.Request.Temperature = math.NaN() }, []string{"workload.request.temperature"}},
		"top_p":             {func(s *setting.Setting) { s.Workload.Request.TopP = 0 }, []string{"workload.request.top_p"}},
		"no rate":           {func(s *setting.Setting) { s.Workload.Arrival.Rate = 0 }, []string{"workload.arrival.rate"}},
		"infinite rate":     {func(s *setting.Setting) { s.Workload.Arrival.Rate = math.Inf(1) }, []string{"workload.arrival.rate", "workload.arrival.rate"}},
		"too many requests": {func(s *setting.Setting) { s.Workload.Arrival.Rate, s.Workload.Duration = 1e6, time.Hour }, []string{"workload.arrival.rate"}},
		"rate of closed": {func(s *setting.Setting) {
			s.Workload.Arrival.Process, s.Workload.Arrival.Concurrency = setting.ProcessClosed, 4
		}, []string{"workload.arrival.rate"}},
		"no concurrency":  {func(s *setting.Setting) { s.Workload.Arrival = setting.Arrival{Process: setting.ProcessClosed} }, []string{"workload.arrival.concurrency"}},
		"rate and ladder": {func(s *setting.Setting) { s.Workload.Ladder = []float64{1, 2} }, []string{"workload.arrival.rate"}},
		"ladder of closed": {func(s *setting.Setting) {
			s.Workload.Arrival, s.Workload.Ladder = setting.Arrival{Process: setting.ProcessClosed, Concurrency: 1}, []float64{1}
		}, []string{"workload.ladder"}},
		"no stages": {func(s *setting.Setting) { s.Workload.Arrival = setting.Arrival{Process: setting.ProcessStages} }, []string{"workload.arrival.stages"}},
		"stages sum": {func(s *setting.Setting) {
			s.Workload.Arrival = setting.Arrival{Process: setting.ProcessStages, Stages: []setting.Stage{{Rate: 1, Duration: time.Second}}}
		}, []string{"workload.arrival.stages"}},
		"stages give the duration": {func(s *setting.Setting) {
			s.Workload.Duration = 0
			s.Workload.Arrival = setting.Arrival{Process: setting.ProcessStages, Stages: []setting.Stage{{Rate: 1, Duration: time.Minute}}}
		}, nil},
		"trace":         {func(s *setting.Setting) { s.Workload.Arrival = setting.Arrival{Process: setting.ProcessTrace} }, []string{"workload.arrival.trace_path", "workload.arrival.trace_digest"}},
		"no lengths":    {func(s *setting.Setting) { s.Workload.Input = setting.Lengths{} }, []string{"workload.input_tokens.distribution"}},
		"foreign field": {func(s *setting.Setting) { s.Workload.Input.Sigma = 1 }, []string{"workload.input_tokens.sigma"}},
		"no max": {func(s *setting.Setting) {
			s.Workload.Input = setting.Lengths{Distribution: setting.DistLognormal, Median: 5, Sigma: 1}
		}, []string{"workload.input_tokens.max"}},
		"min above max": {func(s *setting.Setting) {
			s.Workload.Input = setting.Lengths{Distribution: setting.DistUniform, Min: 5, Max: 4}
		}, []string{"workload.input_tokens.min"}},
		"pairs of one": {func(s *setting.Setting) {
			s.Workload.Input = setting.Lengths{Distribution: setting.DistPairs, Pairs: []setting.Pair{{Input: 1, Output: 1, Weight: 1}}}
		}, []string{"workload.output_tokens.distribution"}},
		"file without file": {func(s *setting.Setting) { s.Workload.Input = setting.Lengths{Distribution: setting.DistFile} }, []string{"workload.input_tokens.distribution"}},
		"lengths of a trace": {func(s *setting.Setting) {
			s.Workload.Arrival = setting.Arrival{Process: setting.ProcessTrace, TracePath: "t.jsonl", TraceDigest: digest, TraceScale: 1}
			s.Workload.Input, s.Workload.Output = setting.Lengths{Distribution: setting.DistFile}, setting.Lengths{Distribution: setting.DistFile}
		}, nil},
		"no prompt file":     {func(s *setting.Setting) { s.Workload.Prompts.Source = "file" }, []string{"workload.prompts.file_path", "workload.prompts.file_digest"}},
		"prefix of no group": {func(s *setting.Setting) { s.Workload.Prompts.PrefixLen = 5 }, []string{"workload.prompts.prefix_tokens"}},
		"think time alone":   {func(s *setting.Setting) { s.Workload.Prompts.ThinkTime = 5 }, []string{"workload.prompts.think_time"}},
		"hit ratio": {func(s *setting.Setting) {
			s.Workload.Prompts.Groups, s.Workload.Prompts.PrefixLen, s.Workload.Prompts.HitRatio = 1, 1, 2
		}, []string{"workload.prompts.hit_ratio"}},
		"no duration":   {func(s *setting.Setting) { s.Workload.Duration = 0 }, []string{"workload.duration"}},
		"long duration": {func(s *setting.Setting) { s.Workload.Duration = 25 * time.Hour }, []string{"workload.duration"}},
		"negative":      {func(s *setting.Setting) { s.Workload.Warmup = -1 }, []string{"workload.warmup"}},
		"seed":          {func(s *setting.Setting) { s.Workload.Seed = 1 << 60 }, []string{"workload.seed"}},
		"several": {
			func(s *setting.Setting) { s.Workload.Duration, s.Model.Name, s.Hardware.GPU = 0, "", "" },
			[]string{"model.name", "hardware.gpu", "workload.duration"},
		},
	} {
		s := valid()
		c.change(&s)
		s.Normalize()
		var got []string
		for _, f := range s.Validate() {
			got = append(got, f.Keys[0])
			if f.Message == "" || strings.HasSuffix(f.Message, ".") {
				t.Errorf("%s: message %q", name, f.Message)
			}
			for _, key := range f.Keys {
				if _, _, ok := setting.LookupAxis(key); !ok {
					t.Errorf("%s: %s is no axis", name, key)
				}
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s\n%+v", name, diff, s.Validate())
		}
	}
}
