module sbench/tests/engine

go 1.26.5

require (
	github.com/apptainer/sif/v2 v2.25.0
	github.com/hybridgroup/yzma v1.28.0
)

require (
	github.com/ebitengine/purego v0.10.0 // indirect
	github.com/google/go-containerregistry v0.22.1 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/jupiterrider/ffi v0.7.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)
