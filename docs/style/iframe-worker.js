/* Browsers start no worker for a page that was opened from a folder. There the search runs in a hidden frame instead. */
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const scope = this.frame.contentWindow;
      scope.postMessage = (data) => setTimeout(() => this.onmessage?.({ data })); // later, as a worker answers
      this.ready = new Promise((loaded) => {
        const script = scope.document.createElement("script");
        script.src = new URL(url, document.baseURI);
        script.onload = loaded;
        script.onerror = () => this.onerror?.(new ErrorEvent("error"));
        scope.document.body.append(script);
      });
    }
    postMessage(message) {
      const data = structuredClone(message);
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
