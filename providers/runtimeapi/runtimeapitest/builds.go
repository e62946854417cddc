package runtimeapitest

import (
	"bytes"
	"encoding/base64"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"time"
)

// build is one image that somebody had built.
type build struct {
	image string
	size  int
	at    time.Time
}

// registryPrefix is where images that are built here go.
const registryPrefix = "registry.invalid/runtime-api"

func (s *Service) registryCall(*call) answer {
	return answer{http.StatusOK, map[string]any{"registry_prefix": registryPrefix}}
}

// imageCall knows the images that were built here.
func (s *Service) imageCall(c *call) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.builds {
		if one.image == c.URL.Query().Get("image") {
			return answer{http.StatusOK, map[string]any{
				"exists": true, "image": map[string]any{"upload_time": one.at.Format(time.RFC3339), "image_size_bytes": one.size},
			}}
		}
	}
	return answer{http.StatusOK, map[string]any{"exists": false, "image": nil}}
}

// buildCall takes a build context and is done with it at once.
func (s *Service) buildCall(c *call) answer {
	_, params, err := mime.ParseMediaType(c.Header.Get("Content-Type"))
	if err != nil || params["boundary"] == "" {
		return refused(http.StatusUnprocessableEntity, "a multipart form is required")
	}
	form := multipart.NewReader(bytes.NewReader(c.body), params["boundary"])
	fields := map[string]string{}
	for {
		part, err := form.NextPart()
		if err == io.EOF { //nolint:errorlint // NextPart documents the value itself
			break
		}
		if err != nil {
			return refused(http.StatusUnprocessableEntity, "the form is cut off")
		}
		text, err := io.ReadAll(part)
		if err != nil {
			return refused(http.StatusUnprocessableEntity, "the form is cut off")
		}
		fields[part.FormName()] = string(text)
	}
	context, err := base64.StdEncoding.DecodeString(fields["context"])
	if err != nil || fields["target_image"] == "" {
		return refused(http.StatusUnprocessableEntity, "context (base64) and target_image are required")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := random()
	s.builds[id] = build{image: fields["target_image"], size: len(context), at: s.now}
	return answer{http.StatusOK, map[string]any{"build_id": id}}
}

func (s *Service) buildStatusCall(c *call) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	one, ok := s.builds[c.URL.Query().Get("build_id")]
	if !ok {
		return refused(http.StatusNotFound, "Build not found")
	}
	return answer{http.StatusOK, map[string]any{"status": "SUCCESS", "image": one.image, "error": nil}}
}
