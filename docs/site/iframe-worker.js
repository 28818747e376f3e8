// A Worker for pages that are opened from the disk, where browsers refuse to start one: the theme's search is one.
// Its program runs in a hidden frame, whose window gets the two functions of a worker that a window lacks.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    #window;
    #ready;

    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.#window = frame.contentWindow;
      this.#window.postMessage = (data) => {
        const event = this.#emit(this, data);
        this.onmessage?.(event);
      };
      this.#window.importScripts = async (...urls) => {
        for (const each of urls) await this.#load(each);
      };
      this.#ready = this.#load(url);
    }

    postMessage(data) {
      this.#ready = this.#ready.then(() => this.#emit(this.#window, data));
    }

    terminate() {
      this.#window.frameElement.remove();
    }

    #emit(target, data) {
      const event = new MessageEvent("message", { data });
      target.dispatchEvent(event);
      return event;
    }

    #load(url) {
      return new Promise((loaded, failed) => {
        const script = this.#window.document.createElement("script");
        script.src = new URL(url, location.href).href;
        script.onload = loaded;
        script.onerror = () => failed(new Error(`cannot load ${script.src}`));
        this.#window.document.head.append(script);
      });
    }
  };
  window.Worker = window.IFrameWorker;
}
