// Command k8s makes what the tests of snapkv.rendering compare with, by Kubernetes' own code.
//
//	k8s fields           the table of field numbers, snapkv/rendering/kubernetes_fields.txt
//	k8s encode FILE...   for each YAML document one JSON line: its stored bytes and its JSON
//	k8s decode           stored bytes on stdin, YAML on stdout: a decoder
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"sort"
	"strings"

	admission "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	autoscaling1 "k8s.io/api/autoscaling/v1"
	autoscaling2 "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	certificates "k8s.io/api/certificates/v1"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	events "k8s.io/api/events/v1"
	flowcontrol "k8s.io/api/flowcontrol/v1"
	networking "k8s.io/api/networking/v1"
	node "k8s.io/api/node/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	resource "k8s.io/api/resource/v1"
	scheduling "k8s.io/api/scheduling/v1"
	storage "k8s.io/api/storage/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"sigs.k8s.io/yaml"
)

var scheme = runtime.NewScheme()

func init() {
	for _, add := range []func(*runtime.Scheme) error{
		admission.AddToScheme, apps.AddToScheme, autoscaling1.AddToScheme, autoscaling2.AddToScheme,
		batch.AddToScheme, certificates.AddToScheme, coordination.AddToScheme, core.AddToScheme,
		discovery.AddToScheme, events.AddToScheme, flowcontrol.AddToScheme, networking.AddToScheme,
		node.AddToScheme, policy.AddToScheme, rbac.AddToScheme, resource.AddToScheme,
		scheduling.AddToScheme, storage.AddToScheme,
	} {
		must(add(scheme))
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	switch os.Args[1] {
	case "fields":
		fields()
	case "encode":
		for _, name := range os.Args[2:] {
			encode(name)
		}
	case "decode":
		decode()
	}
}

func encode(name string) {
	text, err := os.ReadFile(name)
	must(err)
	codecs := serializer.NewCodecFactory(scheme)
	stored := protobuf.NewSerializer(scheme, scheme)
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		object, kind, err := codecs.UniversalDeserializer().Decode(document, nil, nil)
		must(err)
		var binary bytes.Buffer
		must(codecs.EncoderForVersion(stored, kind.GroupVersion()).Encode(object, &binary))
		object.GetObjectKind().SetGroupVersionKind(*kind)
		tree, err := json.Marshal(object)
		must(err)
		line, err := json.Marshal(map[string]any{"stored": binary.Bytes(), "json": json.RawMessage(tree)})
		must(err)
		fmt.Println(string(line))
	}
}

func decode() {
	stored, err := io.ReadAll(os.Stdin)
	must(err)
	object, kind, err := serializer.NewCodecFactory(scheme).UniversalDeserializer().Decode(stored, nil, nil)
	must(err)
	object.GetObjectKind().SetGroupVersionKind(*kind)
	text, err := yaml.Marshal(object)
	must(err)
	os.Stdout.Write(text)
}

// fields writes `apiVersion Kind message`, then for each message its fields.
func fields() {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	waiting := []reflect.Type{}
	lines := []string{}
	for kind, goType := range scheme.AllKnownTypes() {
		_, proto := reflect.PointerTo(goType).MethodByName("MarshalToSizedBuffer")
		_, hasMeta := goType.FieldByName("ObjectMeta")
		if !proto || !hasMeta {
			continue
		}
		lines = append(lines, fmt.Sprintf("%s %s %s", kind.GroupVersion(), kind.Kind, message(goType)))
		waiting = append(waiting, goType)
	}
	sort.Strings(lines)
	for _, line := range lines {
		fmt.Fprintln(out, line)
	}
	seen := map[reflect.Type]bool{}
	blocks := map[string]string{}
	for len(waiting) > 0 {
		goType := waiting[0]
		waiting = waiting[1:]
		if seen[goType] {
			continue
		}
		seen[goType] = true
		block := ""
		for i := 0; i < goType.NumField(); i++ {
			field := goType.Field(i)
			tag := strings.Split(field.Tag.Get("protobuf"), ",")
			if len(tag) < 2 || tag[1] == "" {
				continue
			}
			jsonTag := strings.Split(field.Tag.Get("json"), ",")
			name := jsonTag[0]
			if name == "" || field.Anonymous && name == "" {
				name = "="
			}
			text, inner := typeText(field.Type, jsonTag[1:])
			if inner != nil {
				waiting = append(waiting, inner)
			}
			block += fmt.Sprintf(" %s %s %s\n", tag[1], name, text)
		}
		blocks[message(goType)] = block
	}
	names := []string{}
	for name := range blocks {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		fmt.Fprintf(out, "%s\n%s", name, blocks[name])
	}
}

func message(t reflect.Type) string {
	path := strings.Split(strings.TrimPrefix(t.PkgPath(), "k8s.io/"), "/")
	return strings.Join(path[len(path)-min(2, len(path)):], ".") + "." + t.Name()
}

var special = map[string]string{
	"v1.Time": "time", "v1.MicroTime": "time", "v1.FieldsV1": "json", "resource.Quantity": "quantity",
	"intstr.IntOrString": "int-or-string", "runtime.RawExtension": "json", "v1.Duration": "duration",
	"v1.Verbs": "", "v1.JSON": "json",
}

func typeText(t reflect.Type, options []string) (string, reflect.Type) {
	pointer := t.Kind() == reflect.Pointer
	if pointer {
		t = t.Elem()
	}
	if short, ok := special[t.String()]; ok && short != "" {
		return short, nil
	}
	omit := ""
	for _, option := range options {
		if option == "omitempty" && !pointer {
			omit = "?"
		}
	}
	switch t.Kind() {
	case reflect.String:
		return "string" + omit, nil
	case reflect.Bool:
		return "bool" + omit, nil
	case reflect.Int32, reflect.Int64, reflect.Int:
		return "int" + omit, nil
	case reflect.Float64:
		return "double" + omit, nil
	case reflect.Struct:
		return message(t), t
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes" + omit, nil
		}
		text, inner := typeText(t.Elem(), nil)
		if t.PkgPath() != "" && t.Name() != "" { // a named list is a message with one field
			return "items:" + text, inner
		}
		return "[]" + text, inner
	case reflect.Map:
		text, inner := typeText(t.Elem(), nil)
		return "{}" + text, inner
	}
	panic(t.String())
}

var _ = meta.ObjectMeta{}
