// Package sound reads sounds, and cuts them into the tensors of Silero VAD. It calls no model.
package sound

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/onnxserver/internal/tensor"
)

const (
	// Rate is the number of samples of a second, and Window the number of samples that one call judges.
	Rate   = 16000
	Window = 512
	// context is how many samples of the last window a call has before its own.
	context = 64
	// maxSeconds limits a sound.
	maxSeconds = 600
)

// Parse returns the samples of a WAV file, from -1 to 1. It must have one channel with 16 bits and 16000 samples a second.
func Parse(file []byte) ([]float32, error) {
	if len(file) < 12 || string(file[:4]) != "RIFF" || string(file[8:12]) != "WAVE" {
		return nil, errors.New("the sound is not a WAV file")
	}
	order := binary.LittleEndian
	format := false
	for rest := file[12:]; len(rest) >= 8; {
		name, size := string(rest[:4]), int(order.Uint32(rest[4:]))
		rest = rest[8:]
		size = min(size, len(rest)) // Programs that write to a pipe do not know the size.
		chunk := rest[:size]
		rest = rest[min(len(rest), size+size%2):]
		switch name {
		case "fmt ":
			if size < 16 || order.Uint16(chunk) != 1 || order.Uint16(chunk[2:]) != 1 || order.Uint32(chunk[4:]) != Rate || order.Uint16(chunk[14:]) != 16 {
				return nil, fmt.Errorf("the sound must have one channel of 16 bits, with %d samples a second", Rate)
			}
			format = true
		case "data":
			if !format {
				return nil, errors.New("the WAV file has no format before its data")
			}
			if size > maxSeconds*Rate*2 {
				return nil, fmt.Errorf("the sound is longer than %d s", maxSeconds)
			}
			samples := make([]float32, size/2)
			for i := range samples {
				samples[i] = float32(int16(order.Uint16(chunk[2*i:]))) / 32768
			}
			return samples, nil
		}
	}
	return nil, errors.New("the WAV file has no data")
}

// Windows returns the inputs of the calls for a sound, in order, without the state. The last part of a sound that is
// shorter than a window is left out.
func Windows(samples []float32) []tensor.Tensor {
	var windows []tensor.Tensor
	padded := append(make([]float32, context), samples...)
	for at := context; at+Window <= len(padded); at += Window {
		windows = append(windows, tensor.FromFloats("input", []int64{1, context + Window}, padded[at-context:at+Window]))
	}
	return windows
}

// FirstState returns the state for the first call. The output stateN of a call is the state for the next call.
func FirstState() tensor.Tensor {
	return tensor.FromFloats("state", []int64{2, 1, 128}, make([]float32, 256))
}

// RateInput returns the input with the rate.
func RateInput() tensor.Tensor {
	return tensor.Tensor{Name: "sr", Datatype: tensor.Int64, Shape: []int64{1}, Data: binary.LittleEndian.AppendUint64(nil, Rate)}
}

// Span is a part of a sound with speech, in seconds.
type Span struct{ From, To float64 }

// Speech returns the parts of a sound whose windows have a probability of at least the threshold. Gaps of up to 5 windows,
// which is 160 ms, belong to a part.
func Speech(probabilities []float32, threshold float32) []Span {
	const gap = 5
	const seconds = float64(Window) / Rate
	var spans []Span
	last := -gap - 1
	for i, p := range probabilities {
		if p < threshold {
			continue
		}
		if i-last > gap {
			spans = append(spans, Span{From: float64(i) * seconds})
		}
		spans[len(spans)-1].To = float64(i+1) * seconds
		last = i
	}
	return spans
}
